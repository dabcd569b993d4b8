// SPDX-License-Identifier: Apache-2.0
// Takes over a job whose launcher has exited, from the record that it left (record_keeper.h):
//
//   record -> plan, files -> every host: Attach{takeover} -> TakenOver, then the events since
//   -> continues as if it had been the launcher from the start
//
// If a host cannot be reached, gives up and leaves the job as it is. If a host has no supervisor
// any longer, the host is lost.
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/control/ctl_service.h"
#include "launcher/job/control/record_keeper.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/restarts.h"

namespace ivy {

// Implemented by class Job.
class TakeoverActions {
 public:
  // The files of the output are open: dials all hosts.
  virtual void dial_hosts() = 0;
  // Handles an event that arrived before all hosts had answered.
  virtual void handle(std::size_t host, const Event& event) = 0;
  // All hosts have answered: the job is this launcher's from now on.
  virtual void taken_over() = 0;

 protected:
  ~TakeoverActions() = default;
};

class Takeover {
 public:
  Takeover(JobContext& job, StoreController& store, RankEvents& ranks, HostLosses& losses,
           CtlService& service, JobRecordWriter& record, Restarts& restarts,
           TakeoverActions& actions);

  // Takes over the job of the record: puts its plan into the context, and opens the socket and the
  // files.
  void begin();
  // True until all hosts have answered. Events are deferred until then, because a verdict needs all
  // of them.
  bool is_under_way() const { return !awaited_.empty(); }
  // A host has answered the Attach.
  void host_taken_over(std::size_t index, const TakenOver& taken);
  // Keeps an event for later.
  void defer(std::size_t index, const Event& event);
  // A host could not be reached.
  void host_failed(std::size_t index, const LinkDown& down);
  // A host was lost after it had answered the dial: no more of its events are awaited.
  void host_lost(std::size_t index, HostLoss loss, const RemoteText& why);
  // Ends this launcher before it has ordered anything: the hosts wait for another one.
  void give_up(const RemoteText& why);

 private:
  void restore_plan();
  void dial();
  void print_awaited();
  std::string awaited_text() const;
  void host_answered(std::size_t index);
  void exit_launcher();

  JobContext& job_;
  StoreController& store_;
  RankEvents& ranks_;
  HostLosses& losses_;
  CtlService& service_;
  JobRecordWriter& record_;
  Restarts& restarts_;
  TakeoverActions& actions_;
  std::set<std::size_t> awaited_;  // Hosts that have not answered.
  // Reported once all hosts have answered.
  std::map<std::size_t, std::pair<HostLoss, RemoteText>> lost_;
  // By host: events that still have to arrive after TakenOver.
  std::vector<std::uint32_t> announced_;
  // Hosts to which the previous launcher did not send the restart.
  std::set<std::size_t> missed_start_;
  // By host, serialized: an event with many small parts takes hundreds of times as much memory once
  // it is parsed.
  std::vector<std::pair<std::size_t, std::string>> deferred_;
  std::size_t deferred_bytes_ = 0;
  boost::asio::steady_timer timeout_timer_, limit_timer_;
};

}  // namespace ivy
