// SPDX-License-Identifier: Apache-2.0
// The end of a job, from the first failure to the exit code. Class Job makes these calls in this
// order, driven by the table in job_state.cc:
//
//   a rank fails (RankEvents::ended()), a host is lost (HostLosses::lost()), Ctrl-C or --timeout
//   (class Job): the part applies an event, and if the reason is not a rank's, keeps it with
//   JobContext::end_because()
//     collect_evidence()  after a watchdog's kill: collects the stacks of the other ranks
//     stop(grace)         TERM to every worker, KILL after the grace
//     confirm()           instead of stop(): all workers have exited by themselves
//     take_report()       a host reports that none of its processes is left
//     check_end()         all hosts have reported and all output is here: Restarts::decide() starts
//                         another attempt, or the job ends
//     finish()            starts the last part, in last_part() and close_and_exit():
//                         --fetch, the hosts may forget the job, the rest of the output, the
//                         summary and the exit code (judge() in report/verdict.h finds the first
//                         cause), --requeue, followers, joined nodes
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/control/ctl_service.h"
#include "launcher/job/control/record_keeper.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/host_notices.h"
#include "launcher/job/job_drill.h"
#include "launcher/job/job_fetch.h"
#include "launcher/job/ranks/preemption.h"
#include "launcher/job/ranks/rank_events.h"
#include "launcher/job/ranks/stdin_feed.h"
#include "launcher/job/restarts.h"
#include "launcher/screen/summary.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class JobEnding {
 public:
  JobEnding(JobContext& job, BringUp& bring_up, StdinFeed& stdin_feed, Preemption& preemption,
            RankEvents& ranks, HostLosses& losses, HostNotices& notices, Restarts& restarts,
            CtlService& service, JobRecordWriter& record, JobDrill& drill);

  // Applies kEvidenceReady when the evidence has arrived or has timed out.
  void collect_evidence();
  // TERM to every worker, KILL after the grace (immediately if it is 0).
  void stop(std::chrono::milliseconds grace);
  // Waits for the hosts' reports, and names hosts that are late.
  void confirm() { await_reports(job_.options.linger); }
  // A host has stopped everything.
  void take_report(std::size_t index, const Report& report);
  // Applies kAllReported or kGroupExited if nothing is awaited any longer. Call when a host has
  // reported or is lost, and when output has ended.
  void check_end();
  // Starts the last part.
  void finish();

  JobFetch& fetch() { return fetch_; }

  // True if only output is awaited: nothing runs that could still be stopped.
  bool awaits_only_output() const;
  // Drops output that its reader does not take, and waits for the rest for 2 s at most.
  void give_up_output();
  // Action kLeaveNow: exits without waiting for anything.
  void exit_now();
  // An exception has interrupted the end: continues with less, and exits after three calls at most.
  void handle_exception(const Diagnostic& reason);

 private:
  void await_reports(std::chrono::milliseconds grace);
  void print_unconfirmed();
  void hosts_did_not_stop();
  void cancel_stop();
  // Starts these steps, and stops the steps under way, which must not call this function.
  void run(Awaitable<void> steps);
  Awaitable<void> last_part();
  Awaitable<void> release_hosts();
  Awaitable<void> summarize_and_exit();
  Awaitable<void> close_and_exit();
  Awaitable<void> exit_after_failure();
  Awaitable<void> last_output(bool summary_follows);
  // Prints the summary, and sets outcome_ and cause_.
  void print_summary();
  std::string advice(const std::vector<WorkerEnd>& ends, const Outcome& outcome) const;
  // Gives the summary to programs: --summary json, --events, attempt.json.
  void record_verdict(const SummaryInputs& inputs);
  void write_metrics(int exit_code);

  JobContext& job_;
  BringUp& bring_up_;
  StdinFeed& stdin_feed_;
  Preemption& preemption_;
  RankEvents& ranks_;
  HostLosses& losses_;
  HostNotices& notices_;
  Restarts& restarts_;
  CtlService& service_;
  JobRecordWriter& record_;
  JobDrill& drill_;
  JobFetch fetch_;
  Outcome outcome_;                 // The verdict.
  std::string cause_;               // Why the job ended, in one line; empty: it succeeded.
  bool exits_now_ = false;          // Set by exit_now().
  bool summary_follows_ = false;    // summarize_and_exit() waits; the summary comes next.
  bool exception_handled_ = false;  // Only its reason is still printed.
  boost::asio::steady_timer drain_timer_, stop_timer_, report_timer_;
  std::unique_ptr<Sequence> sequence_;  // The last steps; null before finish() or exit_now().
};

// Writes directly to standard error, because the output's queue may never be written. Gives up
// after 100 ms if the reader takes nothing.
void write_at_once(const std::string& text);

}  // namespace ivy
