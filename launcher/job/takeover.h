// SPDX-License-Identifier: Apache-2.0
// Takes over a job whose launcher is dead, from the record that it left (record_keeper.h).
//
//   record -> plan, files -> every host: Attach{takeover} -> TakenOver, then the events since
//   -> as if it had been the launcher all along
//
// A host that cannot be reached makes it give up and leave the job as it is; a host that has no
// supervisor any more is lost.
//
// Thread: the loop's. Lifetime: that of the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/ctl_service.h"
#include "launcher/job/job_context.h"
#include "launcher/job/record_keeper.h"
#include "launcher/job/restarts.h"

namespace ivy {

// The part of a takeover that class Job does.
class TakeoverActions {
 public:
  // The files of the output are open.
  virtual void dial_hosts() = 0;
  // Handles an event that arrived before all hosts had answered.
  virtual void handle(std::size_t host, const Event& event) = 0;
  // The job is this launcher's from now on.
  virtual void taken_over() = 0;

 protected:
  ~TakeoverActions() = default;
};

class Takeover {
 public:
  Takeover(JobContext& job, StoreHost& store, RankEvents& ranks, HostLosses& losses,
           CtlService& service, RecordKeeper& record, Restarts& restarts, TakeoverActions& actions);

  // Takes over the job of the record, and puts its plan into the context.
  void begin();
  // Not all hosts have answered yet: events are deferred, as a verdict needs all of them.
  bool is_under_way() const { return !awaited_.empty(); }
  void host_taken_over(std::size_t index, const TakenOver& taken);
  void defer(std::size_t index, const Event& event);
  void host_failed(std::size_t index, const LinkDown& down);
  // A host that had answered a dial is lost before all of its events have arrived: no more are
  // awaited.
  void host_lost(std::size_t index, HostLoss loss, const RemoteText& why);
  // Ends this launcher before it has ordered anything: the hosts wait for another one.
  void give_up(const RemoteText& why);

 private:
  void restore_plan();
  void dial();
  void say_awaited();
  std::string awaited_text() const;
  void host_answered(std::size_t index);
  void leave();

  JobContext& job_;
  StoreHost& store_;
  RankEvents& ranks_;
  HostLosses& losses_;
  CtlService& service_;
  RecordKeeper& record_;
  Restarts& restarts_;
  TakeoverActions& actions_;
  std::set<std::size_t> awaited_;                                // Hosts that have not answered.
  std::map<std::size_t, std::pair<HostLoss, RemoteText>> lost_;  // Reported once all have answered.
  std::vector<std::uint32_t> announced_;  // By host: events still to come after its TakenOver.
  // Hosts that the launcher before us did not get to tell of the restart.
  std::set<std::size_t> missed_start_;
  // By host, unparsed: an event of many small parts takes hundreds of times its bytes when parsed.
  std::vector<std::pair<std::size_t, std::string>> deferred_;
  std::size_t deferred_bytes_ = 0;
  boost::asio::steady_timer patience_timer_, limit_timer_;
};

}  // namespace ivy
