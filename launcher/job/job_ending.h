// The end of a job: workers are stopped or killed, hosts prove that nothing is left, the output is
// awaited or given up, and the verdict is printed.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "launcher/job/job_context.h"
#include "launcher/screen/summary.h"

namespace ivy {

class JobEnding {
 public:
  struct Handlers {
    // Adds what only others know: attempts, evidence.
    std::function<void(SummaryInputs&)> add_to_summary;
    std::function<void(std::size_t index, const RemoteText& why)> host_did_not_stop;
    // The outcome stands and has been said. Calls then once.
    std::function<void(const Outcome& outcome, std::function<void()> then)> requeue;
    std::function<void(const Outcome& outcome, const std::string& summary,
                       std::function<void()> then)>
        tell_followers;
    std::function<void(int exit_code, int raise_signal)> over;
  };
  JobEnding(JobContext& job, Handlers handlers);

  // TERM to every worker, KILL after the grace (at once if it is 0).
  void stop(std::chrono::milliseconds grace);
  // All workers have ended by themselves: names the hosts that are late to confirm it.
  void confirm() { await_reports(std::chrono::milliseconds(0)); }
  // Nothing runs any more that could be stopped: only output is awaited.
  bool awaits_only_output() const;
  // No more than 2 s for output that its reader does not take.
  void give_up_output();
  // Between two attempts nothing is being stopped.
  void forget_stop();

  // The hosts may forget the job; then conclude().
  void finish();
  // Prints the rest of the output and the summary, and is over.
  void conclude();
  // Exits without waiting for anything.
  void leave();
  // The end itself has failed: it goes on with less, and is over after three calls at most.
  void fail(const Diagnostic& reason);

 private:
  void await_reports(std::chrono::milliseconds grace);
  void say_unconfirmed();
  void hosts_did_not_stop();
  Outcome say_summary();
  // The same for programs: --summary json, --events, attempt.json.
  void record(const SummaryInputs& inputs);
  std::string hints(const std::vector<WorkerEnd>& ends, const Outcome& outcome) const;
  static void end_state(MetricsFile& file, const std::string& text);
  void write_state(int exit_code);
  void say_over(const Outcome& outcome);

  JobContext& job_;
  Handlers handlers_;
  std::string summary_;
  bool leaves_ = false;           // The launcher leaves without waiting for anything.
  bool summary_follows_ = false;  // The summary comes after the output that conclude() waits for.
  bool has_failed_ = false;       // Only the reason of this failure is still printed.
  boost::asio::steady_timer drain_timer_, stop_timer_, finish_timer_, report_timer_;
};

// Writes to standard error past the output, whose queue may never be written. A reader that takes
// nothing is given up after 100 ms.
void write_at_once(const std::string& text);

}  // namespace ivy
