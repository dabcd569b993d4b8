// SPDX-License-Identifier: Apache-2.0
// Warnings that this host will be stopped, for the launcher (HostNotice): those of its cloud, which
// `ivy-node notices` polls for, and a TERM to the supervisor, from a spot machine's shutdown hook,
// systemd or a user. After a TERM the workers run on until the launcher stops them, a second TERM
// arrives or the time is up.
//
// Thread: the loop's. Lifetime: the context must outlive it; the child dies with the supervisor.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/node/supervisor/server_lines.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "proto/wire/job.pb.h"

namespace ivy {

class NoticeWatch final : private ServerLinesEvents {
 public:
  explicit NoticeWatch(SupervisorContext& context);

  // Watches the cloud's notices, if Hello requests that and this host is in a cloud. Its process is
  // started a little later, when a job's start does not wait for this host.
  void begin(const Hello& hello);
  // SIGTERM. Returns false if the job must stop now. Otherwise the launcher has been told, and
  // `expired` is called when the time is up.
  bool terminated(std::function<void()> expired);
  // The supervisor has reaped a child; does nothing unless it is the poller.
  void reaped(pid_t pid);
  // Excludes the poller from a containment that was newly created.
  void spare_again() const;

 private:
  void find_cloud();
  void start(const std::string& service);
  // ServerLinesEvents
  void server_line(ServerLines& from, const std::string& line) override;

  SupervisorContext& context_;
  boost::asio::steady_timer start_timer_, term_timer_;
  std::string service_;
  std::uint64_t notice_ns_ = 0;
  bool has_term_ = false;  // A first TERM has been reported.
  pid_t pid_ = 0;
  ServerLines lines_;
  const std::shared_ptr<bool> lifetime_ = std::make_shared<bool>(true);
};

}  // namespace ivy
