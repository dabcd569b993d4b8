// SPDX-License-Identifier: Apache-2.0
// Brings a job up, from its list of hosts to the first Start. dial() opens a session to every host;
// then the coroutine run() has the steps in their order:
//
//   greet_hosts()      every host has its files (with --stage: staging.h), and has answered Hello
//                      with its facts, or is left out
//   gate_.pass()       every host passes the checks of --check and similar flags, or is left out
//                      (health_gate.h)
//   check_addresses()  makes the plan, opens the store, and lets every host test the connection to
//                      the first one; again if a host was left out meanwhile
//   read_start()       with --progress-file: the files as the job finds them (progress_reader.h)
//   start_workers()    opens the files of the output, then sends every host its part of the plan
//
// A step that returns false has rejected the job: it cannot do without a host that did not come up,
// and an error names all such hosts. The other functions record what the hosts answer, and notify
// the coroutine. It ends with the first Start, or when the job is stopped (cancel()).
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/job/health_gate.h"
#include "launcher/job/job_drill.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/progress_reader.h"
#include "launcher/job/ranks/rank_events.h"
#include "launcher/job/ranks/stdin_feed.h"
#include "launcher/job/staging.h"
#include "launcher/job/store_controller.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class BringUp final : private StagingEvents {
 public:
  BringUp(JobContext& job, JobPlanner& planner, StoreController& store, ProgressReader& progress,
          RankEvents& ranks, StdinFeed& stdin_feed, HealthGate& gate, JobDrill& drill);

  // Returns a session with a host, to be opened.
  std::unique_ptr<HostSession> make_session(std::size_t index,
                                            const std::shared_ptr<TransportContext>& transports,
                                            HostSessionEvents& events) const;
  // Opens the sessions of all hosts.
  void dial(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events);
  // Starts the coroutine, and with it --start-timeout.
  void start(const std::shared_ptr<TransportContext>& transports);
  // The job is being stopped: ends the coroutine, if it still runs.
  void cancel();
  // Call when a host has answered: the coroutine tests again whether all have.
  void notify() { steps_.notify(); }
  // Action kContinueBringUp.
  void host_left_out();

  // The link to a host is up: sends Hello, with --stage after the files.
  void up(std::size_t index, const LinkUp& up);
  // Bytes of a task of the host: --stage.
  void task_output(std::size_t index, const TaskOutput& output);
  // A host could not be reached.
  void failed(std::size_t index, const LinkDown& down);
  // A host has answered Hello.
  void greeted(std::size_t index, const HelloOk& hello);
  // Orders a host that has joined to connect to the first one.
  void order_check(std::size_t index);
  // Orders every planned host and every spare to connect to the first one.
  void order_checks();
  // A host has tried to connect to the first one. Returns whether it succeeded and had been ordered
  // to.
  bool address_checked(std::size_t index, const AddressChecked& checked);

  // Returns the command that starts the first workers of a host.
  Command start_command(HostPlan plan) const;

  // Messages that name the step that a host has not completed.
  std::string awaited_store(const HostRecord& host) const;
  std::string awaited_check(const HostRecord& host) const;

 private:
  using Time = std::chrono::steady_clock::time_point;

  Awaitable<void> run();
  Awaitable<bool> greet_hosts();
  void limit_slow_hosts();
  Awaitable<bool> check_addresses();
  // With --dry-run, prints the plan instead.
  Awaitable<void> start_workers();
  // Waits for notify(), at most until the deadline. Meanwhile names the awaited hosts in a line.
  Awaitable<void> notified(Time deadline);

  // StagingEvents
  void files_listed() override { notify(); }
  void host_staged(std::size_t index) override;
  void host_not_staged(std::size_t index, const LinkDown& down) override { failed(index, down); }

  Command hello_for(std::size_t index) const;
  void look_up_master(const std::shared_ptr<TransportContext>& transports);
  bool awaits_answer() const;
  // --start-timeout has expired: leaves out the hosts that are late, and gives the others as long
  // again. Returns false if the job cannot do without them.
  bool leave_out_late_hosts();
  Time next_line() const;
  void print_waiting();
  LinkDown failure_of(const HostRecord& host) const;
  Diagnostic unresolved_name(const std::string& when) const;
  void fail_unreachable_hosts(const std::string& when);
  void address_unreachable(std::size_t index, const RemoteText& error);
  void print_dry_run();
  void send_plans(std::vector<HostPlan> plans);

  JobContext& job_;
  JobPlanner& planner_;
  StoreController& store_;
  ProgressReader& progress_;
  RankEvents& ranks_;
  StdinFeed& stdin_feed_;
  HealthGate& gate_;
  JobDrill& drill_;
  bool looks_up_master_ = false;  // The address is being looked up; the plan has to wait for it.
  // Set when a host that the job needs has failed: until then the others may fail, too, so that one
  // message names all of them.
  std::optional<Time> gather_until_;
  bool has_enough_hosts_ = false;   // --pick healthiest: as many as get ranks have answered.
  bool has_left_out_host_ = false;  // Since the plan was made.
  Time limit_at_, line_at_;         // When --start-timeout expires, and when the line is due.
  Staging staging_;
  Sequence steps_;
};

}  // namespace ivy
