// The attempts of a job: how many there may be, whether a group that has failed runs again, and
// what hosts are told to start. The policy is plan/restart_policy.h. Thread: the loop's.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/job/host_losses.h"
#include "launcher/plan/restart_policy.h"
#include "launcher/screen/summary.h"

namespace ivy {

class Restarts {
 public:
  Restarts(JobContext& job, HostLosses& losses);

  // The hosts that are here are those that may be lost, less what the job needs.
  void count_spare_hosts();
  // How many attempts there may be: restarts, and hosts that may be lost.
  int max_attempts() const;
  // A supervisor may then leave with its own workers; the first host's store is still needed by
  // others.
  bool is_last_attempt() const;
  int max_restarts() const { return policy_.max_restarts(); }
  const std::vector<FailedAttempt>& failed() const { return failed_; }

  // An attempt is over and nothing of it is left. True: another one follows, after pause().
  // is_preempted: the ranks have been told that the allocation ends.
  bool decide(bool is_preempted);
  std::chrono::milliseconds pause() const { return pause_; }
  // A launcher that takes the job over: what the hosts know, and the attempts so far.
  void take_over(std::uint32_t generation) { counted_ = static_cast<int>(generation); }
  void learn_max_restarts(int max_restarts);

  Command start(HostPlan plan) const;
  // The same workers once more.
  Command start_again() const;

 private:
  RestartLimits limits(int max_restarts) const;
  std::string missing() const;
  // What ends the attempt besides its workers, or would: the job's own reason, a host, a stall, the
  // store.
  const LauncherEnd& ending_reason() const;
  bool gives_up(bool host_lost);
  void say_failed(const std::string& cause);
  void keep_attempt(const std::vector<WorkerEnd>& ends, const LauncherEnd& reason,
                    const Outcome& outcome) const;

  JobContext& job_;
  HostLosses& losses_;
  RestartPolicy policy_;
  std::vector<FailedAttempt> failed_;  // The attempts before this one.
  int counted_ = 0;              // Restarts that count for --max-restarts; a lost host's do not.
  std::size_t may_be_lost_ = 0;  // Hosts, counted at the start.
  std::chrono::milliseconds pause_{0};
};

}  // namespace ivy
