// SPDX-License-Identifier: Apache-2.0
// The end of a job, from the first failure to the exit code. Class Job makes these calls in this
// order, driven by the table of job_state.h:
//
//   a rank fails (rank_events.cc: ended), a host is lost (host_losses.cc: lost), Ctrl-C or
//   --timeout (job.cc): the part applies an event, and keeps the reason in
//   JobContext::end_because() if it is not a rank's
//     collect_evidence()  after a watchdog's kill: collects the stacks of the other ranks
//     stop(grace)         TERM to every worker, KILL after the grace
//     confirm()           instead of stop(): all workers have exited by themselves
//     take_report()       a host proves that none of its processes is left
//     check_end()         all hosts have reported and all output is here: Restarts::decide() starts
//                         another attempt, or the job ends
//     finish()            starts the last part, which reads top to bottom in end() and exit():
//                         the hosts may forget the job, the rest of the output, the summary and
//                         the exit code (judge() in report/verdict.h picks the first cause),
//                         --requeue, followers, joined nodes
//
// Thread: the loop's. Lifetime: that of the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/ctl_service.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/job_context.h"
#include "launcher/job/preemption.h"
#include "launcher/job/rank_events.h"
#include "launcher/job/record_keeper.h"
#include "launcher/job/restarts.h"
#include "launcher/job/stdin_feed.h"
#include "launcher/screen/summary.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class JobEnding {
 public:
  JobEnding(JobContext& job, BringUp& bring_up, StdinFeed& stdin_feed, Preemption& preemption,
            RankEvents& ranks, HostLosses& losses, Restarts& restarts, CtlService& service,
            RecordKeeper& record);

  void collect_evidence();
  // TERM to every worker, KILL after the grace (immediately if it is 0).
  void stop(std::chrono::milliseconds grace);
  // Names the hosts that are late to report.
  void confirm() { await_reports(std::chrono::milliseconds(0)); }
  void take_report(std::size_t index, const Report& report);
  // Call when a host has reported or is lost, and when output has ended.
  void check_end();
  void finish();

  // Only output is awaited: nothing runs that could still be stopped.
  bool awaits_only_output() const;
  // From now on, output that its reader does not take is awaited for 2 s at most.
  void give_up_output();
  // Exits without waiting for anything.
  void leave();
  // The end itself has failed: continues with less, and exits after three calls at most.
  void fail(const Diagnostic& reason);

 private:
  void await_reports(std::chrono::milliseconds grace);
  void say_unconfirmed();
  void hosts_did_not_stop();
  void cancel_stop();
  // Runs the steps instead of those under way, if any, which must not be the caller.
  void run(Awaitable<void> steps);
  Awaitable<void> end();
  Awaitable<void> release_hosts();
  Awaitable<void> conclude();
  Awaitable<void> exit();
  Awaitable<void> exit_after_failure();
  Awaitable<void> last_output(bool summary_follows);
  // Sets outcome_ and summary_.
  void say_summary();
  std::string advice(const std::vector<WorkerEnd>& ends, const Outcome& outcome) const;
  // The summary for programs: --summary json, --events, attempt.json.
  void record_verdict(const SummaryInputs& inputs);
  void write_metrics(int exit_code);

  JobContext& job_;
  BringUp& bring_up_;
  StdinFeed& stdin_feed_;
  Preemption& preemption_;
  RankEvents& ranks_;
  HostLosses& losses_;
  Restarts& restarts_;
  CtlService& service_;
  RecordKeeper& record_;
  Outcome outcome_;
  std::string summary_;
  bool leaves_ = false;           // The launcher exits without waiting for anything.
  bool summary_follows_ = false;  // conclude() waits for output, and the summary comes next.
  bool has_failed_ = false;       // Only the reason of this failure is still printed.
  boost::asio::steady_timer drain_timer_, stop_timer_, report_timer_;
  std::unique_ptr<Sequence> sequence_;  // Of the last steps; null before finish() and leave().
};

// Writes to standard error past the output, whose queue may never be written. A reader that takes
// nothing is given up after 100 ms.
void write_at_once(const std::string& text);

}  // namespace ivy
