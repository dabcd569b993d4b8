// One job, from its hosts to its verdict: what happens when. What has happened is said by the parts
// below; what follows from it stands in job_state.h, and is done here, part by part.
//
// Thread: the loop's. Lifetime: until `over` was called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/ctl_service.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/job_context.h"
#include "launcher/job/job_ending.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/preemption.h"
#include "launcher/job/rank_events.h"
#include "launcher/job/restarts.h"
#include "launcher/job/stdin_feed.h"
#include "launcher/job/store_host.h"
#include "launcher/job/takeover.h"

namespace ivy {

class Job {
 public:
  Job(boost::asio::io_context& loop, JobRequest request);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // over(exit code, signal to die of or 0) is the last thing that happens.
  void start(std::function<void(int exit_code, int raise_signal)> over);
  // Ctrl-C, TERM, HUP, QUIT: the first asks, the second kills, the third leaves.
  void interrupt(int signal);
  // A handler has thrown: the job ends in order, with this as its reason. Called again, it ends
  // faster.
  void fail(const std::string& what);
  // USR1, USR2 and the like: once to each rank's own process.
  void forward_signal(int signal) { job_.signal_workers(signal); }
  Output& output() { return job_.screen.output(); }
  // What happens when the allocation ends (slurm/allocation_watch.h calls it).
  Preemption& preemption() { return preemption_; }
  // Ctrl-Z: tells every host before this process is stopped. Calls ready when the hosts know, or
  // after 2 s.
  void suspend(std::function<void()> ready);
  void resume();

 private:
  void act(JobAction action);
  void start_timeout();
  void watch_reader();
  void start_workers();
  void start_with(const std::vector<HostPlan>& plans);
  void feed_stdin();
  void stop_workers(std::chrono::milliseconds grace);
  void prepare_restart();
  void check_restart();
  void restart_workers();
  void check_end();
  void check_ready();
  void limit_restart(std::int64_t until_ns);
  std::vector<std::string> restart_awaits() const;
  void restart_is_late();
  void watch_absences();
  void check_absence(std::size_t index);

  HostSession::Handlers session_handlers(std::size_t index);
  void on_alive(std::size_t index, const link::Alive& alive);
  void on_event(std::size_t index, const Event& event);
  void handle(std::size_t index, const Event& event);
  void on_report(std::size_t index, const Report& report);
  void on_note(std::size_t index, const Note& note);
  void leave_foreground();
  void await_paused(std::function<void()> ready, std::int64_t until_ns);
  JobEnding::Handlers ending_handlers();
  Takeover::Handlers takeover_handlers();

  JobContext job_;
  std::shared_ptr<CarrierContext> carriers_;
  JobPlanner planner_;
  StoreHost store_;
  BringUp bring_up_;
  Preemption preemption_;
  RankEvents ranks_;
  HostLosses losses_;
  Restarts restarts_;
  CtlService service_;
  JobEnding ending_;
  Takeover takeover_;
  std::unique_ptr<StdinFeed> stdin_feed_;
  std::function<void(int, int)> over_;
  // How often fail() and interrupt() were called.
  int failures_ = 0, interrupts_ = 0;
  bool pause_is_over_ = false;       // The pause before a restart...
  std::int64_t restart_due_ns_ = 0;  // ...and its end.
  // The last one: for all that a restart waits for after its pause.
  boost::asio::steady_timer timeout_timer_, restart_timer_, restart_limit_timer_;
  boost::asio::steady_timer absence_timer_, reader_timer_, pause_timer_;
};

// Runs the loop until the job has stopped it. An exception that leaves a handler does not end the
// process: it becomes the job's reason to end.
void run_to_the_end(boost::asio::io_context& loop, Job& job);

}  // namespace ivy
