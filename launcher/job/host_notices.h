// SPDX-License-Identifier: Apache-2.0
// Hosts that will be stopped: the notices of their clouds, a TERM to a supervisor, nodes that Slurm
// drains. The ranks get --preempt-signal once for each wave of notices, and time to save their
// state (hosts/notice_board.h). Then the attempt is stopped, and the next one runs without these
// hosts; if the job cannot do without one of them, it ends with exit code 75. A notice before the
// start, between two attempts, or of a host without ranks takes effect immediately.
//
// Preemption (ranks/preemption.h) has the notices for the whole job, and interprets the exits of
// ranks that were warned. Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/hosts/notice_board.h"
#include "launcher/job/ranks/preemption.h"
#include "launcher/slurm/drain_watch.h"

namespace ivy {

class HostNotices final : private DrainEvents {
 public:
  HostNotices(JobContext& job, Preemption& preemption, HostLosses& losses);

  // Begins to follow the nodes that Slurm drains, if that can matter to this job.
  void start();
  // A host has been given notice, or a notice is withdrawn.
  void take(std::size_t index, const HostNotice& notice);
  // The attempt has ended and nothing of it is left: excludes the hosts that were given notice, or
  // makes a notice the reason for the end of the job. Call before Restarts::decide().
  void settle();
  void stop();

 private:
  // DrainEvents
  void node_drains(const std::string& node, const std::string& reason) override;
  void node_resumes(const std::string& node, const std::string& reason) override;

  void add(Notice notice);
  void withdraw(std::size_t index, const std::string& source, const std::string& reason);
  void leave_now(const Notice& notice);
  void schedule();
  void tick();
  void warn_ranks(const std::vector<NoticeHost>& hosts);
  void stop_attempt(const std::vector<NoticeHost>& hosts);
  void end_job(const Notice& notice);
  bool can_continue(const std::vector<NoticeHost>& hosts) const;
  std::vector<NoticeHost> hosts() const;
  std::string name_of(const Notice& notice) const;
  std::optional<std::size_t> host_named(const std::string& node) const;

  JobContext& job_;
  Preemption& preemption_;
  HostLosses& losses_;
  NoticeBoard board_;
  std::optional<DrainWatch> drains_;  // In a Slurm allocation.
  boost::asio::steady_timer drain_timer_, timer_;
  std::size_t running_at_signal_ = 0;  // Ranks that ran when they were warned.
  bool is_scheduled_ = false;
  bool is_over_ = false;
};

}  // namespace ivy
