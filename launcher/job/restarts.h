// SPDX-License-Identifier: Apache-2.0
// The attempts of a job after the first one: whether a group that has failed runs again, and how it
// starts again. The policy is plan/restart_policy.h.
//
//   decide()   an attempt is over and nothing of it is left: another one follows, or the job ends
//   prepare()  plans for the hosts that are left; the store begins the next generation; the pause
//   check()    the pause is over and every host is ready: opens the files of the next attempt
//   restart()  the next generation starts
//
// Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/ctl_service.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/record_keeper.h"
#include "launcher/plan/restart_policy.h"
#include "launcher/screen/summary.h"

namespace ivy {

class Restarts {
 public:
  Restarts(JobContext& job, JobPlanner& planner, StoreHost& store, BringUp& bring_up,
           RankEvents& ranks, HostLosses& losses, CtlService& service, RecordKeeper& record);

  // An attempt is over and nothing of it is left. True: another one follows.
  // is_preempted: the ranks have been told that the allocation ends.
  bool decide(bool is_preempted);
  void prepare();
  // Call when something that a restart waits for has happened. Does nothing at other times.
  void check();
  void restart();
  // The job ends: no restart follows.
  void cancel();

  // The attempts before this one.
  const std::vector<FailedAttempt>& failed() const { return failed_; }
  // A launcher that takes the job over: what the hosts know, and the attempts so far.
  void take_over(std::uint32_t generation) { counted_ = static_cast<int>(generation); }
  void learn_max_restarts(int max_restarts);
  // The order to start the same workers once more.
  Command start_again() const;

 private:
  RestartLimits limits() const;
  std::string missing() const;
  // The end of this attempt that is not a worker's: the job's own reason, a lost host, a stall, the
  // lost store.
  const LauncherEnd& ending_reason() const;
  bool gives_up(bool host_lost);
  void say_failed(const std::string& cause);
  void keep_attempt(const std::vector<WorkerEnd>& ends, const LauncherEnd& reason,
                    const Outcome& outcome) const;
  void limit(std::int64_t until_ns);
  // The things that a restart still waits for, a line each.
  std::vector<std::string> waits() const;
  void is_late();

  JobContext& job_;
  JobPlanner& planner_;
  StoreHost& store_;
  BringUp& bring_up_;
  RankEvents& ranks_;
  HostLosses& losses_;
  CtlService& service_;
  RecordKeeper& record_;
  RestartPolicy policy_;
  std::vector<FailedAttempt> failed_;
  int counted_ = 0;  // Restarts that count for --max-restarts; those after a lost host do not.
  std::chrono::milliseconds pause_{0};
  bool pause_is_over_ = false;
  std::int64_t due_ns_ = 0;  // The end of the pause.
  boost::asio::steady_timer pause_timer_;
  boost::asio::steady_timer limit_timer_;  // For everything that a restart waits for after it.
};

}  // namespace ivy
