// SPDX-License-Identifier: Apache-2.0
// The attempts of a job after the first one. decide() is called when an attempt is over and nothing
// of it is left: another one follows (plan/restart_policy.h), or the job ends. If another one
// follows, prepare() starts the coroutine run(), which has the steps of a restart in their order:
//
//   read_host_list()  with --hosts-from
//   gate_.pass()      the hosts of the next attempt pass the checks of --check and similar flags
//                     (health_gate.h), or are left out
//   plan()            plans for the hosts that are left; the store begins the next generation
//   the rest of the pause, which has started with the first step
//   wait_until()      the store has begun the generation, and every host can connect to it
//   open_files()      for the output of the next attempt
//   start_workers()
//
// A step that returns false has rejected the job. A step that waits does so in wait_until(), which
// reports what is awaited and rejects the job at --start-timeout.
//
// The coroutine ends with its restart: the job ends (cancel()), or a host is lost that the job can
// do without (prepare() is called again). Thread: the loop's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/control/ctl_service.h"
#include "launcher/job/control/record_keeper.h"
#include "launcher/job/growth.h"
#include "launcher/job/host_list_refresh.h"
#include "launcher/job/host_losses.h"
#include "launcher/plan/restart_policy.h"
#include "launcher/screen/summary.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class Restarts {
 public:
  Restarts(JobContext& job, JobPlanner& planner, StoreController& store, ProgressReader& progress,
           BringUp& bring_up, HealthGate& gate, RankEvents& ranks, HostLosses& losses,
           Growth& growth, CtlService& service, JobRecordWriter& record);

  // Call before decide(). Returns true while the files of --progress-file are read, on which the
  // decision depends; then calls JobPhase::check_end().
  bool awaits_progress(bool is_preempted);
  // Call when an attempt is over and nothing of it is left. Returns whether another one follows.
  // is_preempted: the ranks have been warned that the allocation, or a host that the job needs,
  // ends.
  bool decide(bool is_preempted);
  // Action kPrepareRestart: starts the pause and the restart, or starts them again.
  void prepare();
  // Call when something that a restart waits for may have happened.
  void notify();
  // The job ends: stops a restart that is under way.
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
  // --condemn-on: leaves out the host of the rank that failed first, if the job can do without it.
  // Returns its name then, with the cause of the list; else an empty text.
  std::string condemn(const WorkerEnd* first, const AttemptCause& cause);
  void end_without_progress(const std::string& why, const WorkerEnd* first);
  std::string common_host(const WorkerEnd* first) const;
  void print_failed(FailedAttempt attempt, const std::string& how = " failed: ");
  // The attempt was stopped so that other hosts can join. Returns whether another one follows.
  bool decide_growth(bool is_preempted);
  void keep_attempt(const std::vector<WorkerEnd>& ends, const LauncherEnd& reason,
                    const Outcome& outcome) const;
  // The restart and its steps.
  Awaitable<void> run();
  Awaitable<bool> read_host_list();
  bool plan();
  Awaitable<bool> open_files();
  void start_workers();
  // Waits until the condition is true. Reports once, some time after the pause, what is awaited. At
  // the limit it rejects the job and returns false.
  Awaitable<bool> wait_until(bool (Restarts::*condition)() const);
  bool has_host_list() const { return !host_list_.is_running(); }
  bool is_ready() const { return !store_.is_beginning() && job_.hosts.are_ready(); }
  bool has_opened_files() const { return rejection_.has_value() || !job_.screen.is_opening(); }
  // Names the things that a restart still waits for, one in each line.
  std::vector<std::string> waits() const;
  void print_waits() const;
  void reject_late();

  JobContext& job_;
  JobPlanner& planner_;
  StoreController& store_;
  ProgressReader& progress_;
  BringUp& bring_up_;
  HealthGate& gate_;
  RankEvents& ranks_;
  HostLosses& losses_;
  Growth& growth_;
  CtlService& service_;
  JobRecordWriter& record_;
  HostListRefresh host_list_;
  RestartPolicy policy_;
  std::vector<FailedAttempt> failed_;
  std::size_t reported_leftovers_ = 0;  // Of JobContext::leftovers, at earlier restarts.
  int counted_ = 0;  // Restarts that count for --max-restarts. Restarts after a lost host do not.
  std::chrono::milliseconds pause_{0};
  // The end of the pause, when to report what is still awaited, and when to give up.
  std::chrono::steady_clock::time_point due_at_, report_at_, limit_at_;
  std::optional<Diagnostic> rejection_;  // Set if the files cannot be opened.
  std::unique_ptr<Sequence> steps_;      // The restart; null before the first one.
};

}  // namespace ivy
