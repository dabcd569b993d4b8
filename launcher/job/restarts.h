// SPDX-License-Identifier: Apache-2.0
// The attempts of a job after the first one: whether a group that has failed runs again
// (plan/restart_policy.h), and how it starts again:
//
//   decide()   an attempt is over and nothing of it is left: another one follows, or the job ends
//   prepare()  the pause; with --hosts-from, the list of hosts is read again
//   plan()     plans for the hosts that are left; the store begins the next generation
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
#include "launcher/job/control/ctl_service.h"
#include "launcher/job/control/record_keeper.h"
#include "launcher/job/host_list_refresh.h"
#include "launcher/job/host_losses.h"
#include "launcher/plan/restart_policy.h"
#include "launcher/screen/summary.h"

namespace ivy {

class Restarts {
 public:
  Restarts(JobContext& job, JobPlanner& planner, StoreController& store, BringUp& bring_up,
           RankEvents& ranks, HostLosses& losses, CtlService& service, JobRecordWriter& record);

  // Call when an attempt is over and nothing of it is left. Returns whether another one follows.
  // is_preempted: the ranks have been given notice that the allocation ends.
  bool decide(bool is_preempted);
  // Action kPrepareRestart.
  void prepare();
  // Call when something that a restart waits for has happened. Does nothing if no restart is
  // awaited.
  void check();
  // Action kRestartWorkers.
  void restart();
  // The job ends: stops a restart that is awaited.
  void cancel();

  // The failed attempts before this one.
  const std::vector<FailedAttempt>& failed() const { return failed_; }
  // Call in a takeover: the restarts so far are taken from the generation, the limit from the
  // hosts.
  void take_over(std::uint32_t generation) { counted_ = static_cast<int>(generation); }
  void learn_max_restarts(int max_restarts);
  // Returns the command that starts the same workers again.
  Command start_again() const;

 private:
  RestartLimits limits() const;
  // Why the remaining hosts cannot run the group again; empty: they can.
  std::string missing() const;
  // The reason for the end of this attempt if it is not a worker's failure: the job's own reason, a
  // lost host, a stall, or the lost store.
  const LauncherEnd& ending_reason() const;
  // No attempt follows: makes the reason for the end of this attempt that of the job.
  void give_up(bool host_lost);
  AttemptCause cause_of(const WorkerEnd* first) const;
  void end_without_progress(const std::string& why, const WorkerEnd* first);
  std::string common_host(const WorkerEnd* first) const;
  // host: of the rank that failed first; empty if the attempt ended for another reason.
  void print_failed(const std::string& host, const std::string& cause);
  void plan();
  void keep_attempt(const std::vector<WorkerEnd>& ends, const LauncherEnd& reason,
                    const Outcome& outcome) const;
  void limit(std::int64_t until_ns);
  // Names the things that a restart still waits for, one in each line.
  std::vector<std::string> waits() const;
  void restart_timed_out();

  JobContext& job_;
  JobPlanner& planner_;
  StoreController& store_;
  BringUp& bring_up_;
  RankEvents& ranks_;
  HostLosses& losses_;
  CtlService& service_;
  JobRecordWriter& record_;
  HostListRefresh host_list_;
  RestartPolicy policy_;
  std::vector<FailedAttempt> failed_;
  int counted_ = 0;  // Restarts that count for --max-restarts. Restarts after a lost host do not.
  std::chrono::milliseconds pause_{0};
  bool pause_is_over_ = false;
  bool is_planned_ = false;
  std::int64_t due_ns_ = 0;  // When the pause ends.
  boost::asio::steady_timer pause_timer_;
  // For everything that a restart waits for after the pause.
  boost::asio::steady_timer limit_timer_;
};

}  // namespace ivy
