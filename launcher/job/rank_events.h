// What hosts say about the ranks of the present generation: how they start, print, stall and end;
// what they report to each other goes through here. A host is believed for its own ranks alone.
//
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <string>
#include <vector>

#include "launcher/hang/job_evidence.h"
#include "launcher/job/job_context.h"
#include "launcher/job/mpi_world.h"
#include "launcher/job/preemption.h"
#include "launcher/job/rank_event_relay.h"
#include "launcher/job/rank_losses.h"

namespace ivy {

class RankEvents {
 public:
  RankEvents(JobContext& job, Preemption& preemption);

  // The workers of the plan are about to start, in the job's present generation.
  void begin();

  // True: this was the last of the workers.
  bool started(std::size_t index, const Started& started);
  // Takes every other event that is about ranks.
  void heard(std::size_t index, const Event& event);
  void output(std::size_t index, const link::OutputChunk& chunk);
  // Keeps a fault that a host reports of its devices after a failure, with the rank that uses the
  // device. Faults of devices that the job may not use are ignored.
  void device_trouble(std::size_t index, const DeviceTrouble& trouble);
  // Prints what has stalled, what the ranks are doing, and `more`: the wait graph of the store.
  void say_stall(const std::string& what, const std::string& more);
  // The ranks of a lost host.
  void lost(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss);

  RankEventRelay& news() { return news_; }
  // What each rank does and uses, within a second; `job` is for the caller to fill.
  using Described = std::function<void(const ctl::RanksDescription&)>;
  void describe(Described done, bool with_places = false);
  JobEvidence& evidence() { return evidence_; }
  RankLosses& losses() { return losses_; }

 private:
  WorkerRecord* worker(std::size_t index, std::uint32_t generation, std::uint32_t rank);
  void start_failed(std::size_t index, const StartFailed& failed);
  void exited(std::size_t index, const Exited& exited);
  void stalled(std::size_t index, const Stalled& stalled);
  void jax_service_lost(std::size_t index, const JaxServiceLost& lost);
  void ended(WorkerRecord& worker);
  RankEventRelay::Handlers news_handlers();
  JobEvidence::Handlers evidence_handlers();
  WatchdogAbort watchdog_abort() const;
  void end_stalled();
  void watch_remaining();
  void say_remaining();

  JobContext& job_;
  Preemption& preemption_;
  RankEventRelay news_;
  JobEvidence evidence_;
  MpiWorld mpi_;
  RankLosses losses_;
  boost::asio::steady_timer remaining_timer_;  // Since the last exit, while other ranks run.
  bool has_said_remaining_ = false;            // In this attempt.
};

}  // namespace ivy
