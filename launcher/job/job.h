// SPDX-License-Identifier: Apache-2.0
// One job, from its hosts to its exit code.
//
// Words of this folder:
//  attempt, generation   one run of all workers of the job. Users and messages count attempts from
//                        1; the code and the wire count generations from 0.
//  group                 all workers of the job, which fail and start again together
//  part                  an object that owns one aspect of the job (below)
//  planned host          a host on which the plan places workers
//  lost host             a host, or its supervisor, that is no longer reachable
//  excluded host         a host that takes no part any longer (hosts/membership.h)
//
// The parts apply events to JobPhase. The table in core/job_state.cc determines the action, and
// act() calls the part that performs it:
//  how a job comes up                           bring_up.h
//  checks of the hosts before each attempt      health_gate.h
//  how a generation runs                        ranks/rank_events.h
//  hosts that are lost                          host_losses.h
//  hosts that join later                        growth.h
//  hosts that will be stopped                   host_notices.h
//  how a group starts again                     restarts.h
//  how a job ends                               job_ending.h
//  faults that a drill injects                  job_drill.h
//  a job whose launcher was killed              takeover.h
//  the record for the next launcher             control/record_keeper.h
//  the state that all of them share             core/job_context.h
//
// Job itself does what no part owns: it dispatches actions and the hosts' messages, reports hosts
// that are silent or stuck, and handles --timeout, signals, Ctrl-Z and the reader of standard
// output.
//
// Thread: the loop's. Lifetime: until `on_finished` was called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/bring_up.h"
#include "launcher/job/control/ctl_service.h"
#include "launcher/job/control/record_keeper.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/growth.h"
#include "launcher/job/health_gate.h"
#include "launcher/job/host_losses.h"
#include "launcher/job/host_notices.h"
#include "launcher/job/job_drill.h"
#include "launcher/job/job_ending.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/ranks/preemption.h"
#include "launcher/job/ranks/rank_events.h"
#include "launcher/job/ranks/stdin_feed.h"
#include "launcher/job/restarts.h"
#include "launcher/job/store_controller.h"
#include "launcher/job/takeover.h"
#include "launcher/links/transport_context.h"
#include "launcher/slurm/allocation_watch.h"

namespace ivy {

class Job final : public AllocationEvents,
                  private JobActions,
                  private HostSessionEvents,
                  private TakeoverActions,
                  private DrillActions,
                  private TransportEvents,
                  private JoinedNodesEvents {
 public:
  Job(boost::asio::io_context& loop, JobRequest request);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // Starts the job. on_finished() is the last call; raise_signal is 0 or the signal to raise.
  void start(std::function<void(int exit_code, int raise_signal)> on_finished);
  // A signal of the user (Ctrl-C, TERM, HUP, QUIT): the first stops the workers, the second kills
  // them, the third exits.
  void interrupt(int signal);
  // Call when a handler has thrown: ends the job in order, with this text as its reason. Each
  // further call takes a shorter way.
  void handle_exception(const std::string& what);
  // Sends a signal such as USR1 once to each rank's own process.
  void forward_signal(int signal) { job_.signal_workers(signal); }
  Output& output() { return job_.screen.output(); }
  // AllocationEvents
  void allocation_notice(int signal, bool by_slurm) override {
    preemption_.give_notice(signal, by_slurm);
  }
  void allocation_signal(int signal) override { forward_signal(signal); }
  void allocation_interrupt(int signal) override { interrupt(signal); }
  void allocation_ends() override { preemption_.end_with_allocation(); }
  void allocation_message(const std::string& line) override { job_.print(line); }
  // Ctrl-Z: stops the workers and tells every host before this process is suspended. Calls ready
  // when the messages have left, or after 2 s.
  void suspend(std::function<void()> ready);
  // Call when this process continues.
  void resume();

 private:
  // JobActions
  void act(JobAction action) override;
  void check_end() override { ending_.check_end(); }
  void exit(int exit_code, int raise_signal) override;
  // HostSessionEvents. host_event() leads to handle(), the switch over the hosts' messages.
  void host_up(std::size_t host, const LinkUp& up) override { bring_up_.up(host, up); }
  void host_event(std::size_t host, const Event& event) override;
  void host_output(std::size_t host, const session::OutputChunk& chunk) override {
    ranks_.output(host, chunk);
  }
  void host_failed(std::size_t host, const LinkDown& down) override;
  void host_lost(std::size_t host, HostLoss loss, const RemoteText& why) override;
  void host_progress(std::size_t host, const LinkStep& step) override;
  void host_input_window(std::size_t) override { stdin_feed_.resume(); }
  void host_alive(std::size_t host, const session::Alive& alive) override;
  // TakeoverActions
  void dial_hosts() override;
  void handle(std::size_t host, const Event& event) override;
  void taken_over() override;
  // DrillActions
  void drill_notice(std::size_t host, const HostNotice& notice) override {
    notices_.take(host, notice);
  }
  // TransportEvents
  void transport_note(const RemoteText& text) override { job_.screen.note(text.line()); }
  void step_signalled(int signal, bool whole_tree) override {
    preemption_.step_signalled(signal, whole_tree);
  }
  // OutputEvents and JoinedNodesEvents
  void output_consumed(int host_index, std::uint64_t bytes) override;
  void output_closed() override;
  void nodes_interrupted(int signal) override;
  void nodes_message(const std::string& line) override { job_.print(line); }

  void start_timeout();
  void watch_reader();
  void host_task_output(std::size_t index, const TaskOutput& output);
  void host_is_ready();
  void watch_absences();
  void check_absence(std::size_t index);
  void on_note(std::size_t index, const Note& note);
  void leave_foreground();
  void await_paused(std::function<void()> ready, std::int64_t until_ns);
  void cancel_timers();

  // The parts. Each refers only to those declared before it.
  JobContext job_;
  std::shared_ptr<TransportContext> transports_;
  JobPlanner planner_;
  StoreController store_;
  ProgressReader progress_;
  Preemption preemption_;
  RankEvents ranks_;
  StdinFeed stdin_feed_;
  HealthGate gate_;
  JobDrill drill_;
  BringUp bring_up_;
  Growth growth_;
  HostLosses losses_;
  HostNotices notices_;
  CtlService service_;
  JobRecordWriter record_;
  Restarts restarts_;
  JobEnding ending_;
  Takeover takeover_;
  std::function<void(int, int)> on_finished_;
  int failures_ = 0;  // How often handle_exception() was called.
  boost::asio::steady_timer timeout_timer_, absence_timer_, reader_timer_, pause_timer_;
};

// Runs the loop until the job has stopped it. An exception that leaves a handler does not end the
// process: it is passed to Job::handle_exception().
void run_to_the_end(boost::asio::io_context& loop, Job& job);

}  // namespace ivy
