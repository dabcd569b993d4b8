// The carrier of a host that dials back (dial_back_hosts.h): waits until it does, then moves bytes
// over that connection. Thread: the loop's.
#pragma once

#include <memory>
#include <string>

#include "launcher/links/host_link.h"
#include "launcher/links/remote_greeting.h"
#include "launcher/links/srun/dial_back_hosts.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class DialBackLink : public HostLink {
 public:
  // host: the name by which its group knows it, such as Slurm's.
  DialBackLink(boost::asio::io_context& loop, std::shared_ptr<DialBackHosts> hosts,
               std::string host, Handlers handlers);
  ~DialBackLink() override;
  DialBackLink(const DialBackLink&) = delete;
  DialBackLink& operator=(const DialBackLink&) = delete;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void close() override;

 private:
  void serve(std::shared_ptr<DialBackStream> stream);
  void take(std::string_view bytes);
  Awaitable<void> give_way();
  void release();
  void fail(const LinkDown& down);

  const std::shared_ptr<DialBackHosts> hosts_;
  const std::string host_;
  LinkReports reports_;
  OpenRequest request_;
  StepClient client_;
  std::shared_ptr<DialBackStream> stream_;
  RemoteGreeting greeting_{RemoteGreeting::Speaker::kRelay};
  bool owes_drained_ = false;
  Sequence second_dial_;
};

}  // namespace ivy
