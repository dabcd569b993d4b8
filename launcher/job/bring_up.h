// SPDX-License-Identifier: Apache-2.0
// Brings a job up, from its list of hosts to the first Start. The functions in their order:
//
//   dial()             opens a session to every host; looks up --master-addr
//   up()               a host is connected; with --stage, it gets its files now (staging.h)
//   greeted()          a host has answered Hello with its facts
//   failed()           a host could not be reached
//   check_greeted()    every host has answered or was given up: applies kAllGreeted
//   check_addresses()  makes the plan, opens the store, and lets every host test the connection to
//                      the first one
//   check_ready()      all hosts can connect to it, and the store listens: applies kAllChecked
//   start_workers()    opens the files of the output, then sends every host its part of the plan
//
// If the job cannot do without a host that did not come up, it ends with an error that names all
// such hosts.
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/ranks/rank_events.h"
#include "launcher/job/ranks/stdin_feed.h"
#include "launcher/job/staging.h"
#include "launcher/job/store_controller.h"

namespace ivy {

class BringUp final : private StagingEvents {
 public:
  BringUp(JobContext& job, JobPlanner& planner, StoreController& store, RankEvents& ranks,
          StdinFeed& stdin_feed);

  // Opens the sessions of all hosts.
  void dial(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events);
  // Starts --start-timeout, and the line that names the hosts that are awaited.
  void start_waiting();
  // Ends the limit and the line. Call when the workers start, or the job ends.
  void stop_waiting();

  // The link to a host is up: sends Hello, with --stage after the files.
  void up(std::size_t index, const LinkUp& up);
  // Bytes of a task of the host: --stage.
  void task_output(std::size_t index, const TaskOutput& output);
  // A host could not be reached.
  void failed(std::size_t index, const LinkDown& down);
  // A host has answered Hello.
  void greeted(std::size_t index, const HelloOk& hello);
  // Applies kAllGreeted if all hosts have answered. Call when a host has answered or is given up,
  // and when --master-addr has been looked up.
  void check_greeted();

  // Action kCheckAddresses.
  void check_addresses();
  // Orders every planned host to connect to the first one.
  void order_checks();
  // A host has tried to connect to the first one. Returns whether it succeeded and had been ordered
  // to.
  bool address_checked(std::size_t index, const AddressChecked& checked);
  // Applies kAllChecked if all hosts are ready. Call when a host can connect to the first one, and
  // when the store listens.
  void check_ready();
  // Action kStartWorkers. With --dry-run, prints the plan instead.
  void start_workers();

  // Messages that name the step that a host has not completed.
  std::string awaited_store(const HostRecord& host) const;
  std::string awaited_check(const HostRecord& host) const;

 private:
  // StagingEvents
  void files_listed() override { check_greeted(); }
  void host_staged(std::size_t index) override;
  void host_not_staged(std::size_t index, const LinkDown& down) override { failed(index, down); }

  void limit_start();
  Command hello_for(std::size_t index) const;
  void look_up_master(const std::shared_ptr<TransportContext>& transports);
  void schedule_waiting_line();
  void print_waiting();
  void start_timed_out();
  LinkDown failure_of(const HostRecord& host) const;
  Diagnostic unresolved_name(const std::string& when) const;
  void fail_unreachable_hosts(const std::string& when);
  void address_unreachable(std::size_t index, const RemoteText& error);
  void print_dry_run();
  void start_with(const std::vector<HostPlan>& plans);
  Command start_command(HostPlan plan) const;

  JobContext& job_;
  JobPlanner& planner_;
  StoreController& store_;
  RankEvents& ranks_;
  StdinFeed& stdin_feed_;
  bool looks_up_master_ = false;  // The address is being looked up; the plan has to wait for it.
  Staging staging_;
  boost::asio::steady_timer start_timer_, gather_timer_, waiting_timer_;
};

}  // namespace ivy
