// The carrier of a host in a srun step: waits until the host dials back (srun_step.h), then moves
// bytes over that connection. Thread: the loop's.
#pragma once

#include <memory>
#include <string>

#include "launcher/links/host_link.h"
#include "launcher/links/remote_greeting.h"
#include "launcher/links/srun/srun_step.h"

namespace ivy {

class DialBackLink : public HostLink {
 public:
  // host: Slurm's name of it.
  DialBackLink(boost::asio::io_context& loop, std::shared_ptr<SrunStep> step, std::string host,
               Handlers handlers);
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

  const std::shared_ptr<SrunStep> step_;
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
