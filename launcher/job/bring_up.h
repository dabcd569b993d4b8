// Brings a job's hosts up: dials and greets them, waits for all or for --nnodes MIN of them, has
// each test the address that workers will be given. Ends with kAllGreeted and kAllChecked, or with
// a refusal that names every host that did not come.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "launcher/job/job_context.h"
#include "launcher/job/job_planner.h"
#include "launcher/job/store_host.h"

namespace ivy {

class BringUp {
 public:
  BringUp(JobContext& job, JobPlanner& planner, StoreHost& store);

  // Opens the sessions of all hosts. handlers(index): what each of them calls.
  void dial(const std::shared_ptr<CarrierContext>& carriers,
            const std::function<HostSession::Handlers(std::size_t index)>& handlers);
  // The hosts have --start-timeout from now on; the wait line says which are awaited.
  void start_waiting();
  void stop_waiting();

  void up(std::size_t index, const LinkUp& up);
  void failed(std::size_t index, const LinkDown& down);
  void greeted(std::size_t index, const HelloOk& hello);
  // All hosts may have answered, or have been given up, and --master-addr has been looked up.
  void check_greeted();

  // All have answered: makes the plan and has them test it.
  void check_addresses();
  // Has every planned host test its way to the first one.
  void ask_for_checks();
  // True: the host does reach it, and has been asked.
  bool address_checked(std::size_t index, const AddressChecked& checked);
  // Every host may have said that it reaches the first one, and the store that it listens.
  void check_ready();

  // What a host that is not ready has not done yet.
  std::string awaited_store(const HostRecord& host) const;
  std::string awaited_check(const HostRecord& host) const;

 private:
  Command hello_for(std::size_t index) const;
  void look_up_master(const std::shared_ptr<CarrierContext>& carriers);
  void schedule_waiting_line();
  void say_waiting();
  void time_is_up();
  LinkDown failure_of(const HostRecord& host) const;
  Diagnostic name_was_not_found(const std::string& when) const;
  void hosts_did_not_come_up(const std::string& when);
  void cannot_reach(std::size_t index, const RemoteText& error);

  JobContext& job_;
  JobPlanner& planner_;
  StoreHost& store_;
  bool looks_up_master_ = false;  // Its name is with the resolver: no plan before the answer.
  boost::asio::steady_timer start_timer_, gather_timer_, waiting_timer_;
};

}  // namespace ivy
