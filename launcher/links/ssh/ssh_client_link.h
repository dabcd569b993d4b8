// The carrier by the user's own ssh program: the same bytes on its standard input and output. It
// knows everything that a site's configuration asks for, and costs a process per host. Thread: the
// loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/links/carrier_context.h"
#include "launcher/links/host_link.h"
#include "launcher/links/peer_lookup.h"
#include "launcher/links/remote_entry.h"
#include "launcher/links/ssh/ssh_config_check.h"
#include "launcher/options/hosts.h"
#include "launcher/streams/child_process.h"
#include "launcher/streams/descriptor_pump.h"

namespace ivy {

// Returns the whole argv: --ssh-command's words as they are, or ours. A program named "ssh" also
// gets options not to prompt and to give up in time.
std::vector<std::string> ssh_client_command(const Options& options, const Host& host,
                                            const std::string& config_path,
                                            const std::string& remote_command);

class SshClientLink : public HostLink {
 public:
  // target: for its host name only.
  SshClientLink(std::shared_ptr<CarrierContext> context, Host host, SshTarget target,
                Handlers handlers);
  ~SshClientLink() override;
  SshClientLink(const SshClientLink&) = delete;
  SshClientLink& operator=(const SshClientLink&) = delete;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void close() override;

 private:
  void want_place(NodeUpload& upload);
  void start(NodeUpload& upload);
  Result<void> start_child(const std::vector<std::string>& command);
  void start_pumps();
  void take(std::string_view bytes);
  void enter(std::string_view bytes);
  void output_ended();
  void report_end();
  LinkDown end_reason();
  void watch_entry();
  void fail(const LinkDown& down);
  std::string fix() const;

  std::shared_ptr<CarrierContext> context_;
  const Host host_;
  const SshTarget target_;
  Handlers handlers_;
  OpenRequest request_;
  std::shared_ptr<PeerLookup> lookup_;
  std::shared_ptr<DescriptorPump> pump_;
  std::shared_ptr<DescriptorPump> error_pump_;
  std::shared_ptr<ChildProcess> child_;
  std::optional<RemoteEntry> entry_;
  Slots::Ticket place_;
  boost::asio::steady_timer timer_;
  std::size_t unwritten_ = 0;  // When it was last looked at.
  std::chrono::steady_clock::time_point moved_at_;
  LinkUp up_;
  std::string error_text_;
  bool owes_drained_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
