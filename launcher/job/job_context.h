// What the parts of one job share: what it was asked to do, where it stands, and what is known of
// its hosts and ranks. Each part changes only what its own header says. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
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

// The state of a job: any part says what has happened, class Job does what follows.
class JobPhase {
 public:
  struct Handlers {
    std::function<void(JobAction)> act;
    std::function<void()> check_end;
  };
  explicit JobPhase(boost::asio::io_context& loop) : loop_(loop) {}
  void begin(Handlers handlers) { handlers_ = std::move(handlers); }
  JobState state() const { return state_; }
  // The job runs already: this launcher takes it over.
  void take_over() { state_ = JobState::kRunning; }
  void apply(JobEvent event);
  // Something that the end of this attempt waits for has come, or does not come any more.
  void check_end() { handlers_.check_end(); }
  // From the loop, later: something is being sent to all hosts, or our caller goes on.
  void apply_later(JobEvent event);
  void check_end_later();

 private:
  boost::asio::io_context& loop_;
  JobState state_ = JobState::kConnecting;
  Handlers handlers_;
};

// Processes that had outlived workers which exited by themselves, and were ended.
struct LeftBehind {
  std::size_t count = 0;
  std::map<std::string, std::size_t> names;  // Of those that hosts have named.
  std::vector<std::string> hosts;
};

struct JobContext {
  JobContext(boost::asio::io_context& loop, JobRequest request);

  void say(const std::string& text) { screen.say("ivyrun: " + text + "\n"); }
  // The first reason is the cause; what follows from it is not. True: this was the first.
  bool end_because(LauncherReason reason, Diagnostic diagnostic, int signal = 0);
  bool has_reason() const { return launcher_end.reason != LauncherReason::kNone; }
  // If a stall or a lost store ended this attempt, it ends the job.
  void take_attempt_end_as_reason();
  // No worker starts any more. The last of them ends the job, the others are said before it.
  void refuse(std::vector<Diagnostic> diagnostics, LauncherReason reason);
  void refuse_input(const Error& error);
  // Signals each rank's own process, while workers run.
  void signal_workers(int signal);
  // Time from TERM to KILL: what the user or an allocation that ends allows instead of the usual.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual) const;
  bool was_started() const { return started_at_ns != 0; }
  bool outlives_launcher() const { return request.detachment != nullptr && options.lease; }
  // The workers that have ended, with the last that they have written.
  std::vector<WorkerEnd> worker_ends() const;
  // What --metrics-file says of the job itself.
  MetricsInputs metrics_inputs() const;
  // What ending the job means now: "stopping 8 workers".
  std::string stopping_text() const;

  boost::asio::io_context& loop;
  const JobRequest request;
  const Options& options;
  const std::uint32_t takeover;  // Which launcher of the job this is; 0: the first.
  JobPhase phase;
  JobPlan plan;
  std::uint32_t generation = 0;
  JobHosts hosts;
  JobWorkers workers;
  JobScreen screen;
  JobEvents events;
  std::int64_t opened_unix_ms = 0, opened_at_ns = 0;
  std::int64_t started_at_ns = 0, job_started_at_ns = 0;  // This generation, the first one.
  LauncherEnd launcher_end;
  std::vector<DeviceNote> device_notes;  // Faults of devices in this generation.
  std::vector<std::string> unclean;      // What may have been left running, for the summary.
  LeftBehind left_behind;                // Of all hosts and generations.
  // Bytes of standard input that ranks have read. Nothing: not known (yet).
  std::optional<std::uint64_t> input_taken;
  std::optional<std::chrono::milliseconds>
      requested_grace;     // What `ivyctl stop --grace` asked for.
  bool concluded = false;  // Its end is being printed, or this launcher leaves it to another.
};

}  // namespace ivy
