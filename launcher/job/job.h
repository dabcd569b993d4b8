// Runs one job: greets the hosts, lets them check each other, starts the workers, follows them to
// their end, and says how it went. What happens when is decided by job_state.h; this class does it.
//
// Thread: the loop's. Lifetime: until `over` was called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hang/job_evidence.h"
#include "launcher/job/host_session.h"
#include "launcher/job/job_news.h"
#include "launcher/job/job_request.h"
#include "launcher/job/job_socket.h"
#include "launcher/job/job_state.h"
#include "launcher/job/membership.h"
#include "launcher/job/stdin_feed.h"
#include "launcher/plan/restart_policy.h"
#include "launcher/plan/worker_environment.h"
#include "launcher/screen/output.h"
#include "launcher/screen/summary.h"

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
  void forward_signal(int signal);
  // The Slurm allocation ends (slurm/allocation_watch.h): the ranks are told; the job is stopped.
  void give_notice(int signal, bool by_slurm);
  void end_with_allocation();
  Output& output() { return *output_; }
  // Ctrl-Z: announces the pause to every host; calls ready when it has gone out.
  void suspend(std::function<void()> ready);
  void resume();

 private:
  struct HostRecord {
    Host host;
    std::string name;
    bool on_this_host = false;
    std::unique_ptr<HostSession> session;
    RemoteText doing;
    std::optional<LinkUp> up;
    std::optional<HostFacts> facts;
    std::optional<LinkDown> failure;  // It never came up.
    bool checked = false;
    bool opens_store = false;  // Host 0, between OpenStore and its answer.
    std::string interface;
    bool reported = false;  // Its report of this generation has arrived.
    bool lost = false;
    std::optional<GoneMember> gone;         // --nnodes MIN:MAX: why it takes no part any more.
    std::uint32_t events_to_take_over = 0;  // Events still to come after its TakenOver.
    bool missed_start = false;  // The launcher before us died before it told this host to restart.
    int plan_index = -1;        // In JobPlan::hosts; -1: no workers there.
  };
  struct WorkerRecord {
    WorkerEnd end;
    bool ended = false;
    int open_streams = 2;
    std::size_t host = 0;
  };

  void apply(JobEvent event);
  void act(JobAction action);
  void open_sessions();
  void wait_until_paused(std::function<void()> ready, std::int64_t until_ns);
  void check_addresses();
  void ask_for_checks();
  void open_store();
  void start_workers();
  void send_plans(const EnvironmentInputs& inputs);
  void start_with(const std::vector<Command>& plans);
  void make_worker_records();
  Result<EnvironmentInputs> environment_inputs(const std::vector<HostAnswer>& all) const;
  std::vector<RankPlace> places() const;
  std::vector<std::string> first_lines(const EnvironmentInputs& inputs) const;
  void collect_evidence();
  void stop_workers(std::chrono::milliseconds grace, const std::string& reason);
  void prepare_restart();
  void check_restart();
  void restart_workers();
  void finish();
  void conclude();
  void give_up_output();
  void await_reader();
  void await_log_dir();
  void log_dir_answered();
  std::string stopping_text() const;
  void hosts_did_not_stop();
  Outcome say_summary();
  void leave();
  void fail_at_the_end(const Diagnostic& reason);

  HostSession::Handlers session_handlers(std::size_t index);
  void host_up(std::size_t index, const LinkUp& up);
  void host_failed(std::size_t index, const LinkDown& down);
  void host_lost(std::size_t index, HostLoss loss, const RemoteText& message);
  void on_event(std::size_t index, const Event& event);
  void on_hello_ok(std::size_t index, const HelloOk& hello);
  void on_address_checked(std::size_t index, const AddressChecked& checked);
  void on_store_opened(std::size_t index, const StoreOpened& opened);
  void on_store_lost(std::size_t index, const StoreLost& lost);
  void check_checked();
  void on_start_failed(std::size_t index, const StartFailed& failed);
  void on_exited(std::size_t index, const Exited& exited);
  void on_report(std::size_t index, const Report& report);
  void on_output(std::size_t index, const link::OutputChunk& chunk);
  // Null: this generation has no such rank, or another host has it. A host is believed for its own.
  WorkerRecord* worker_of(std::size_t index, std::uint32_t generation, std::uint32_t rank);
  void worker_ended(WorkerRecord& worker);
  void on_generation_begun(const GenerationBegun& begun);
  void check_greeted();
  void look_up_master();
  void check_reported();
  bool decide_restart();
  bool all_reported() const;
  bool only_output_is_awaited() const;
  bool everything_is_here() const;

  bool may_shrink() const { return options_.min_nodes.has_value() && takeover_ == 0; }
  std::size_t least_members() const;
  std::vector<Member> members() const;
  std::string range_text() const;
  std::string members_text() const;
  Options planning_options() const;
  void let_go(std::size_t index, const std::string& step, const RemoteText& reason);
  void start_time_is_up();
  bool host_is_dispensable(std::size_t index);
  bool lose_member(std::size_t index, const LauncherEnd& end, const std::string& cause);
  bool cannot_reach(std::size_t index, const RemoteText& error);
  bool plan_again();
  void begin_store();
  std::chrono::milliseconds pause_for_lost(std::chrono::milliseconds pause) const;
  void start_new_plan();
  void lose_what_is_left();
  std::string missing_for_restart() const;
  int max_attempts() const;

  bool ended_by_notice(WorkerRecord& worker);
  void say_preempted(std::int64_t at_ns);
  void requeue_if_due(const Outcome& outcome, std::function<void()> then);

  std::unique_ptr<Output> make_output();
  void schedule_job_socket();
  void open_job_socket();
  Result<void> listen_for_ivyctl();
  ctl::JobDescription description() const;
  Result<void> signal_by_request(int signal);
  Result<void> stop_by_request(const ctl::StopJob& stop);
  static std::set<std::string> addresses_of(const HostRecord& host);
  Result<ctl::StoreDescription> store_description() const;
  void on_note(std::size_t index, const Note& note);
  void say_stall(const std::string& what, const std::string& more);
  JobNews::Handlers news_handlers();
  JobEvidence::Handlers evidence_handlers();
  void worker_started(WorkerRecord& worker, int pid);
  void leave_foreground();
  void tell_end(const Outcome& outcome, std::function<void()> told);
  // False only while a launcher that takes the job over opens its files.
  bool has_sessions() const { return !hosts_.empty() && hosts_.front().session; }
  bool outlives_launcher() const { return request_.detachment != nullptr && options_.lease; }

  void write_record();  // Says so when it cannot be written.
  Result<void> save_record();
  void renew_record();
  void resume_job();
  void restore_plan(const ctl::JobRecord& record);
  void resume_failed(std::size_t index, const LinkDown& down);
  void on_taken_over(std::size_t index, const TakenOver& taken);
  void host_answered();
  void give_up_resuming(const RemoteText& why);
  void leave_to_the_other();
  void end_without_the_job();

  Command hello_for(std::size_t index) const;
  bool is_last_attempt() const;
  Command start_again() const;
  RestartLimits restart_limits(int max_restarts) const;
  std::vector<WorkerEnd> worker_ends() const;
  std::vector<HostAnswer> answers() const;
  bool make_the_plan();
  void show_dry_run();
  void refuse_input(const Error& error);
  void refuse(std::vector<Diagnostic> diagnostics, LauncherReason reason);
  void hosts_did_not_come_up(const std::string& what);
  void end_by_launcher(LauncherReason reason, int signal, Diagnostic diagnostic);
  void say_waiting();
  void schedule_waiting();
  void start_timers();
  void feed_stdin();
  std::chrono::milliseconds grace(std::chrono::milliseconds usual) const;
  std::chrono::milliseconds lease() const;

  boost::asio::io_context& loop_;
  const JobRequest request_;
  const Options& options_;
  std::string job_id_, token_, summary_text_;
  std::uint32_t generation_ = 0;
  std::function<void(int, int)> over_;
  JobState state_ = JobState::kConnecting;
  JobNews news_;
  JobEvidence evidence_;
  std::shared_ptr<CarrierContext> carriers_;
  std::vector<HostRecord> hosts_;
  std::vector<WorkerRecord> workers_;  // By rank.
  JobPlan plan_;
  bool looks_up_master_ = false;  // Its name is with the resolver: no plan before the answer.
  std::vector<std::string> master_addresses_;
  std::string master_addr_error_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<JobSocket> job_socket_;
  std::optional<std::chrono::milliseconds> requested_grace_;  // ivyctl stop --grace
  std::int64_t opened_unix_ms_ = 0, opened_at_ns_ = 0;
  std::unique_ptr<StdinFeed> stdin_feed_;
  LauncherEnd launcher_end_;
  std::vector<std::string> unclean_;
  std::int64_t started_at_ns_ = 0, job_started_at_ns_ = 0;  // This generation, the first one.
  RestartPolicy restarts_{RestartLimits{}};
  std::vector<FailedAttempt> attempts_;  // The failed attempts before this one.
  int counted_restarts_ = 0;  // Restarts that count for --max-restarts; a lost host's do not.
  std::vector<LostMember> lost_members_;   // Lost in this attempt.
  std::size_t may_be_lost_ = 0;            // Hosts that may be lost, counted at the start.
  bool plan_is_new_ = false;               // The plan differs from the previous attempt's.
  std::optional<std::size_t> store_host_;  // The host that was last told of the store...
  std::uint32_t store_generation_ = 0;     // ...and the generation that it was told.
  std::chrono::milliseconds restart_pause_{0};
  bool store_begins_ = false;  // Between BeginGeneration and its answer.
  std::size_t workers_running_ = 0, workers_started_ = 0;
  std::uint32_t takeover_ = 0;          // Which launcher of the job this is.
  std::size_t hosts_to_take_over_ = 0;  // Not 0: events are deferred, as a verdict needs all.
  std::vector<std::pair<std::size_t, Event>> deferred_events_;
  std::size_t deferred_bytes_ = 0;
  int failures_ = 0;                 // Calls of fail().
  std::uint32_t output_serial_ = 0;  // Number of the newest begin() of the output...
  bool output_begins_ = false;       // ...and whether it is still under way.
  bool waits_for_reader_ = false;    // The user has been told that the end waits for a reader.
  bool concluded_ = false, pause_is_over_ = false;
  bool leaves_ = false;           // The launcher leaves without waiting for anything.
  bool summary_follows_ = false;  // The summary comes after the output that conclude() waits for.
  bool gives_up_end_ = false;     // The end itself failed: only its reason is still printed.
  int interrupts_ = 0, notice_signal_ = 0;  // The latter: signal that told the ranks of the end.
  std::uint64_t window_bytes_ = 0;          // Output credit of one host.
  // After a kill, output that the console does not take in 2 s is dropped.
  bool output_may_be_cut_ = false;
  boost::asio::steady_timer start_timer_, gather_timer_, waiting_timer_, timeout_timer_;
  boost::asio::steady_timer drain_timer_, finish_timer_, suspend_timer_, stop_timer_;
  boost::asio::steady_timer socket_timer_, record_timer_, restart_timer_, reader_timer_;
};

// Runs the loop until the job has stopped it. An exception that leaves a handler does not end the
// process: it becomes the job's reason to end.
void run_to_the_end(boost::asio::io_context& loop, Job& job);

}  // namespace ivy
