// SPDX-License-Identifier: Apache-2.0
// Brings a job up, from its list of hosts to the first Start:
//
//   dial()             opens a session to every host, looks --master-addr up
//   up(), greeted()    each host answers Hello with its facts; failed(): it did not come up
//   check_greeted()    all have answered, or --nnodes MIN of them: kAllGreeted
//   check_addresses()  makes the plan, opens the store; every host tests its way to the first one
//   check_ready()      all hosts reach it and the store listens: kAllChecked
//   start_workers()    opens the files of the output, then sends every host its part of the plan
//
// Ends with a refusal that names every host that did not come up, if the job cannot do without
// them.
//
// Thread: the loop's. Lifetime: that of the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "launcher/job/job_context.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/rank_events.h"
#include "launcher/job/stdin_feed.h"
#include "launcher/job/store_host.h"

namespace ivy {

class BringUp {
 public:
  BringUp(JobContext& job, JobPlanner& planner, StoreHost& store, RankEvents& ranks,
          StdinFeed& stdin_feed);

  // Opens the sessions of all hosts.
  void dial(const std::shared_ptr<TransportContext>& transports, HostSessionEvents& events);
  // Starts --start-timeout, and the line that names the hosts that are awaited.
  void start_waiting();
  void stop_waiting();

  void up(std::size_t index, const LinkUp& up);
  void failed(std::size_t index, const LinkDown& down);
  void greeted(std::size_t index, const HelloOk& hello);
  // Call when a host has answered or is given up, and when --master-addr has been looked up.
  void check_greeted();

  void check_addresses();
  // Asks every planned host to connect to the first one.
  void ask_for_checks();
  // True: the host reaches it, and had been asked.
  bool address_checked(std::size_t index, const AddressChecked& checked);
  // Call when a host has reported that it reaches the first one, or that the store listens.
  void check_ready();
  // --dry-run prints the plan instead.
  void start_workers();

  // Name the step that a host has not taken yet.
  std::string awaited_store(const HostRecord& host) const;
  std::string awaited_check(const HostRecord& host) const;

 private:
  Command hello_for(std::size_t index) const;
  void look_up_master(const std::shared_ptr<TransportContext>& transports);
  void schedule_waiting_line();
  void say_waiting();
  void time_is_up();
  LinkDown failure_of(const HostRecord& host) const;
  Diagnostic name_was_not_found(const std::string& when) const;
  void hosts_did_not_come_up(const std::string& when);
  void cannot_reach(std::size_t index, const RemoteText& error);
  void print_dry_run();
  void start_with(const std::vector<HostPlan>& plans);
  Command start_command(HostPlan plan) const;

  JobContext& job_;
  JobPlanner& planner_;
  StoreHost& store_;
  RankEvents& ranks_;
  StdinFeed& stdin_feed_;
  bool looks_up_master_ = false;  // Its name is being looked up: no plan before the answer.
  boost::asio::steady_timer start_timer_, gather_timer_, waiting_timer_;
};

}  // namespace ivy
