// SPDX-License-Identifier: Apache-2.0
// Runs the generations of this host's workers, each from its start to its report, and the exit of
// the supervisor after the last one. generation.cc reads from top to bottom:
//
//   Start, StartAgain ─▶ workers run ─▶ exits ─┬─▶ a single rank is restarted (ReplaceWorker)
//                           │                  │
//                       stop ordered      all have exited
//                           ▼                  ▼
//                       TERM, KILL ──▶ proof that no process is left ──▶ Report
//                                                                          │
//                                                                StartAgain, or exit
//
// Ending (pure) decides the next step and its time; perform() carries it out. Thread: the loop's.
// Lifetime: the arguments of the constructor must outlive it.
#pragma once

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/spawn/containment.h"
#include "agent/node/supervisor/command_channel.h"
#include "agent/node/supervisor/control_server.h"
#include "agent/node/supervisor/device_watch.h"
#include "agent/node/supervisor/event_sender.h"
#include "agent/node/supervisor/host_container.h"
#include "agent/node/supervisor/host_task.h"
#include "agent/node/supervisor/host_workers.h"
#include "agent/node/supervisor/jax_service.h"
#include "agent/node/supervisor/job_store.h"
#include "agent/node/supervisor/mpi_servers.h"
#include "agent/node/supervisor/notice_watch.h"
#include "agent/node/supervisor/supervisor_context.h"
#include "agent/node/workers/ending.h"
#include "agent/node/workers/lease.h"
#include "agent/node/workers/replacements.h"
#include "proto/contract/exit_code.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Creates the containment of the next generation. May use the cgroup that the warden has verified.
std::unique_ptr<Containment> make_containment_for(const SupervisorStart& start);

class Generation final : private HostWorkersEvents, private DeviceWatchEvents {
 public:
  Generation(SupervisorContext& context, const Lease& lease, CommandChannel& channel,
             ControlServer& control, EventSender& events, JobStore& store, HostTasks& tasks,
             HostContainer& container, NoticeWatch& notices);

  // Set by Hello: the time from TERM to KILL unless a stop specifies another one, and whether the
  // job continues without its launcher.
  void set_grace(std::uint64_t grace_ns) { grace_ns_ = grace_ns; }
  std::uint64_t grace_ns() const { return grace_ns_; }
  void set_outlives_launcher() { outlives_launcher_ = true; }
  void take_own_files(HostWorkers::OwnFiles files);

  // Commands of the launcher. start() and start_again() answer with StartFailed for each rank if
  // the group cannot start.
  void start(const Start& request);
  void start_again(const StartAgain& request);
  void replace_worker(const ReplaceWorker& request);
  void stop(const Stop& request);
  void finish_after_report();  // Finish

  // Orders a stop. The first reason is reported to the launcher. 0 ns means KILL immediately.
  void order_stop(std::uint64_t grace_ns, const std::string& reason, bool after_failure = false);
  // Orders a stop because of SIGTERM, whose sender waits for the supervisor's exit.
  void order_exit(std::uint64_t grace_ns, const std::string& reason);
  // Exits without a report, once the job's container has been removed.
  void finish();

  // SIGCHLD.
  void reap_children();
  // Call it every kSupervisorTick.
  void tick(std::uint64_t now_ns, std::uint64_t elapsed_ns);

  HostWorkers& workers() { return workers_; }
  DeviceWatch& devices() { return devices_; }
  // Returns true if no worker was started yet, or if this generation's report was sent.
  bool is_idle() const;
  bool is_reported() const { return ending_.reported(); }
  std::uint32_t max_restarts() const { return max_restarts_; }

 private:
  // HostWorkersEvents
  void workers_changed() override { check_soon(); }
  MpiEnd classify_mpi_exit(std::uint32_t rank, const ExitStatus& status) override {
    return mpi_.classify(rank, status);
  }
  bool may_start_again() const override {
    return !finishes_when_clean_ || workers_.plan().on_failure() == FAILURE_IS_REPLACED;
  }
  void worker_exited(const Worker& worker) override;
  // DeviceWatchEvents
  void start_allowed(std::optional<std::uint32_t> rank) override;
  void start_given_up(std::optional<std::uint32_t> rank) override;
  void devices_settled() override { report(is_report_clean_); }

  void start_group(const HostPlan& plan);
  void forget_generation();
  void reject_start(const HostPlan& plan, std::uint32_t generation);
  void reject_rank(std::uint32_t rank, std::uint32_t generation);
  void start_replacements();
  void await_devices(const Replacements::Ordered& due);
  bool awaits_replacement() const { return replacements_.awaits() || !awaiting_devices_.empty(); }
  void start_nothing_more();
  void check_soon();
  // Passes the facts to Ending, and performs the actions that it returns.
  void check();
  EndingFacts facts();
  void perform(EndingAction action);
  void report_linger(std::uint64_t now_ns);
  void name_killed();
  void interrupt_workers();
  void terminate_uninformed();
  void report(bool is_clean);

  SupervisorContext& context_;
  const Lease& lease_;
  CommandChannel& channel_;
  ControlServer& control_;
  EventSender& events_;
  JobStore& store_;
  HostTasks& tasks_;
  HostContainer& container_;
  NoticeWatch& notices_;
  DeviceWatch devices_;

  // Set by the launcher's commands.
  std::uint64_t grace_ns_ = nanoseconds_of(kGraceAfterFailure);
  bool outlives_launcher_ = false;
  std::uint32_t max_restarts_ = 0;
  std::uint32_t last_generation_ = 0;

  Ending ending_;
  HostWorkers workers_;
  MpiServers mpi_;
  JaxService jax_;
  bool must_reap_ = false;  // Reaping stopped at a process that is still being started.

  HostPlan next_plan_;  // Of a StartAgain that waits for the memory of the devices.

  // Ranks that are restarted one by one (--on-failure shrink, replace).
  bool continues_without_rank_ = false;
  Replacements replacements_;
  // The rejoins of ranks that are due, but whose devices' memory is not free.
  std::map<std::uint32_t, std::uint32_t> awaiting_devices_;
  boost::asio::steady_timer replacement_timer_;

  boost::asio::steady_timer ending_timer_;
  bool is_check_posted_ = false;
  bool is_proved_empty_ = false;
  bool is_report_clean_ = false;  // Of the report that follows devices_settled().
  std::string stop_reason_;
  std::vector<JobProcess> leftovers_;  // Processes that outlived the last worker and were stopped.
  bool has_named_killed_ = false;      // name_killed() was called.
  std::uint64_t linger_noted_ns_ = 0;  // The last note about them; 0: none.

  // Conditions for exiting after the report without Finish.
  bool finish_requested_ = false;     // Finish arrived while workers were still running.
  bool finishes_when_clean_ = false;  // No launcher can redial: nothing needs to be sent again.
  bool exit_requested_ = false;       // SIGTERM.
};

}  // namespace ivy
