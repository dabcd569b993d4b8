// SPDX-License-Identifier: Apache-2.0
// The state that the parts of one job share: the request, the phase, the plan, the hosts and the
// ranks. Class Job owns it, and its parts read and change it. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/drill/fault_log.h"
#include "launcher/job/core/job_reports.h"
#include "launcher/job/core/job_request.h"
#include "launcher/job/core/job_screen.h"
#include "launcher/job/core/job_state.h"
#include "launcher/job/core/job_workers.h"
#include "launcher/job/core/metrics_text.h"
#include "launcher/job/hosts/job_hosts.h"
#include "launcher/report/device_lines.h"
#include "launcher/report/host_findings.h"

namespace ivy {

// Implemented by class Job, for its parts.
class JobActions {
 public:
  // Carries out an action of the table in job_state.cc.
  virtual void act(JobAction action) = 0;
  // Calls JobEnding::check_end().
  virtual void check_end() = 0;
  // The last call of a job: nothing is left to do for this launcher.
  virtual void exit(int exit_code, int raise_signal) = 0;

 protected:
  ~JobActions() = default;
};

// The state of a job: applies events to the table in job_state.cc, and class Job carries out the
// resulting actions.
class JobPhase {
 public:
  JobPhase(boost::asio::io_context& loop, JobActions& actions) : loop_(loop), actions_(actions) {}
  JobState state() const { return state_; }
  // This launcher takes over a job that is already running.
  void take_over() { state_ = JobState::kRunning; }
  // Applies an event, and carries out its action before it returns.
  void apply(JobEvent event);
  // Call when something that the end of this attempt waits for has arrived, or will never arrive.
  void check_end() { actions_.check_end(); }
  // Call apply() or check_end() in a later turn of the loop, for a caller that must finish
  // something first.
  void apply_later(JobEvent event);
  void check_end_later();

 private:
  boost::asio::io_context& loop_;
  JobActions& actions_;
  JobState state_ = JobState::kConnecting;
};

// Processes that were killed because they outlived the worker that had started them.
struct LeftoverProcesses {
  std::size_t count = 0;  // All of them.
  // How many of each name, as far as hosts have reported names.
  std::map<std::string, std::size_t> names;
  std::set<std::string> hosts;
};
// Returns "stopped 3 processes that ranks left behind on node1: sleep (2), wandb-core".
std::string leftovers_text(const LeftoverProcesses& left);

// The state of one job.
struct JobContext {
  JobContext(boost::asio::io_context& loop, JobRequest request, JobActions& actions);

  // Prints a line of ivyrun.
  void print(const std::string& text) { screen.print("ivyrun: " + text + "\n"); }
  // Records why the job ends. Keeps the first reason, because later ones follow from it. Returns
  // whether this was the first.
  bool end_because(LauncherReason reason, Diagnostic diagnostic, int signal = 0);
  bool has_reason() const { return launcher_end.reason != LauncherReason::kNone; }
  // If a stall or a lost store ended this attempt, makes that the reason for the job's end.
  void take_attempt_end_as_reason();
  // Ends the job before a worker of this attempt starts. The last diagnostic becomes the reason,
  // and the others are printed now.
  void reject(std::vector<Diagnostic> diagnostics, LauncherReason reason);
  // Ends the job before a worker of this attempt starts, because of an error in the user's input.
  void reject_input(const Error& error);
  // Sends a signal to each rank's own process, if workers run.
  void signal_workers(int signal);
  // Returns the time from TERM to KILL: the value that the user has set, or that an allocation's
  // end leaves, or else `usual`.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual) const;
  // The workers have been started.
  bool was_started() const { return started_at_ns != 0; }
  // The job survives its launcher: --detach with --lease.
  bool outlives_launcher() const { return request.detachment != nullptr && options.lease; }
  // Returns the workers that have exited, with the end of their output.
  std::vector<WorkerEnd> worker_ends() const;
  // True if all output of the workers has arrived, except from lost hosts.
  bool has_all_output() const;
  // Attempts that this job may have: the first one, the restarts, and one for each host that may be
  // lost.
  int max_attempts() const { return 1 + max_restarts + static_cast<int>(spare_hosts); }
  // True if no restart can follow and the plan has one host, whose supervisor may then exit with
  // its workers. With several hosts, the first one's store is still needed by the others, and with
  // --fetch every host is.
  bool is_last_attempt() const;
  // Returns the part of --metrics-file that describes the job itself.
  MetricsInputs metrics_inputs() const;
  // Returns the start of a message about a stop that begins now: "stopping 8 workers".
  std::string stopping_text() const;

  boost::asio::io_context& loop;
  const JobRequest request;
  const Options& options;
  const std::uint32_t takeover;  // Number of this launcher of the job; 0: the first one.
  JobActions& actions;
  JobPhase phase;
  JobPlan plan;                  // Set by JobPlanner.
  std::uint32_t generation = 0;  // Attempt 1 is generation 0.
  int max_restarts;              // --max-restarts. After a takeover, the value that the hosts know.
  std::size_t spare_hosts = 0;   // Hosts that may be lost (--nnodes MIN:MAX), counted at the start.
  JobHosts hosts;
  JobWorkers workers;
  JobScreen screen;
  JobReports reports;
  // When the first launcher opened the job, and when this one did.
  std::int64_t opened_unix_ms = 0, opened_at_ns = 0;
  // The start of this generation, and that of the first one.
  std::int64_t started_at_ns = 0, job_started_at_ns = 0;
  FaultLog faults;                       // Of --drill; empty without it.
  LauncherEnd launcher_end;              // The launcher's own reason to end the job, if any.
  std::vector<DeviceNote> device_notes;  // Faults of devices in this generation.
  std::vector<Finding> check_findings;   // --doctor: failures of the health gate.
  std::vector<std::string> unclean;  // Lines about processes that may still run, for the summary.
  LeftoverProcesses leftovers;       // Over all hosts and generations.
  // Bytes of standard input that ranks have read; nothing while unknown.
  std::optional<std::uint64_t> input_taken;
  std::optional<std::chrono::milliseconds> requested_grace;  // Set by `ivyctl stop --grace`.
  int interrupts = 0;  // Signals of the user that stop the job, such as Ctrl-C.
  // The summary is being printed, or another launcher takes over: the parts print nothing more.
  bool is_muted = false;
};

}  // namespace ivy
