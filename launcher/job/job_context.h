// SPDX-License-Identifier: Apache-2.0
// The state that the parts of one job share: the request, the phase, the plan, the hosts and ranks.
// Each part changes only the fields that its own header names. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_events.h"
#include "launcher/job/job_hosts.h"
#include "launcher/job/job_request.h"
#include "launcher/job/job_screen.h"
#include "launcher/job/job_state.h"
#include "launcher/job/job_workers.h"
#include "launcher/job/metrics_text.h"
#include "launcher/report/device_lines.h"

namespace ivy {

// Class Job, as its parts know it.
class JobActions {
 public:
  // Performs an action of the table of job_state.h.
  virtual void act(JobAction action) = 0;
  // Calls JobEnding::check_end().
  virtual void check_end() = 0;
  // The last call of a job: this launcher has nothing left to do for it.
  virtual void exit(int exit_code, int raise_signal) = 0;

 protected:
  ~JobActions() = default;
};

// The state of a job. The parts apply events, and class Job performs the resulting actions.
class JobPhase {
 public:
  JobPhase(boost::asio::io_context& loop, JobActions& actions) : loop_(loop), actions_(actions) {}
  JobState state() const { return state_; }
  // The job runs already: this launcher takes it over.
  void take_over() { state_ = JobState::kRunning; }
  void apply(JobEvent event);
  // Call when something that the end of this attempt waits for has arrived, or never will.
  void check_end() { actions_.check_end(); }
  // The same, posted to the loop: for a caller that is in the middle of something.
  void apply_later(JobEvent event);
  void check_end_later();

 private:
  boost::asio::io_context& loop_;
  JobActions& actions_;
  JobState state_ = JobState::kConnecting;
};

// Processes that were killed because they outlived workers which had exited by themselves.
struct LeftBehind {
  std::size_t count = 0;
  std::map<std::string, std::size_t> names;  // Of those that hosts have named.
  std::vector<std::string> hosts;
};

struct JobContext {
  JobContext(boost::asio::io_context& loop, JobRequest request, JobActions& actions);

  void say(const std::string& text) { screen.say("ivyrun: " + text + "\n"); }
  // Keeps the first reason, as later ones follow from it. True: this was the first.
  bool end_because(LauncherReason reason, Diagnostic diagnostic, int signal = 0);
  bool has_reason() const { return launcher_end.reason != LauncherReason::kNone; }
  // If a stall or a lost store ended this attempt, it ends the job.
  void take_attempt_end_as_reason();
  // No worker will start. The last diagnostic becomes the reason, the others are printed now.
  void refuse(std::vector<Diagnostic> diagnostics, LauncherReason reason);
  void refuse_input(const Error& error);
  // Signals each rank's own process, while workers run.
  void signal_workers(int signal);
  // Time from TERM to KILL: what the user or an allocation that ends allows instead of the usual.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual) const;
  bool was_started() const { return started_at_ns != 0; }
  bool outlives_launcher() const { return request.detachment != nullptr && options.lease; }
  // The workers that have exited, with the end of their output.
  std::vector<WorkerEnd> worker_ends() const;
  // All output of the workers is here, except that of lost hosts.
  bool has_all_output() const;
  // Attempts that this job may have: the first one, the restarts, one for each spare host.
  int max_attempts() const { return 1 + max_restarts + static_cast<int>(spare_hosts); }
  // A supervisor may then exit with its own workers, if the store is not on another host.
  bool is_last_attempt() const;
  // The part of --metrics-file that describes the job itself.
  MetricsInputs metrics_inputs() const;
  // The first words about an end of the job now: "stopping 8 workers".
  std::string stopping_text() const;

  boost::asio::io_context& loop;
  const JobRequest request;
  const Options& options;
  const std::uint32_t takeover;  // The number of this launcher of the job; 0: the first.
  JobActions& actions;
  JobPhase phase;
  JobPlan plan;
  std::uint32_t generation = 0;
  int max_restarts;  // --max-restarts; of a job that was taken over, what its hosts know.
  std::size_t spare_hosts = 0;  // Hosts that may be lost (--nnodes MIN:MAX), counted at the start.
  JobHosts hosts;
  JobWorkers workers;
  JobScreen screen;
  JobEvents events;
  std::int64_t opened_unix_ms = 0, opened_at_ns = 0;
  std::int64_t started_at_ns = 0, job_started_at_ns = 0;  // This generation, the first one.
  LauncherEnd launcher_end;
  std::vector<DeviceNote> device_notes;  // Faults of devices in this generation.
  std::vector<std::string> unclean;      // Processes that may still run, for the summary.
  LeftBehind left_behind;                // Of all hosts and generations.
  // Bytes of standard input that ranks have read. Nothing: not known (yet).
  std::optional<std::uint64_t> input_taken;
  std::optional<std::chrono::milliseconds> requested_grace;  // By `ivyctl stop --grace`.
  bool concluded = false;  // The summary is being printed, or another launcher takes over.
};

}  // namespace ivy
