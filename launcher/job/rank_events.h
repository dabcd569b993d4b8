// SPDX-License-Identifier: Apache-2.0
// How a generation runs, from the first worker that starts to the last that exits:
//
//   begin()    the workers of the plan are about to start
//   started()  a host has started a worker
//   output()   a worker has written bytes: to the screen and the files (launcher/screen)
//   exited(), start_failed(), then ended(): applies kWorkerFailed after a failure, unless the
//              allocation ends (preemption.h) or the job continues without the rank
//              (rank_losses.h), and kAllEnded after the last exit
//
// A host is believed for its own ranks only: see worker().
//
// Thread: the loop's. Lifetime: that of the job.
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

class RankEvents final : private ExaminedJob {
 public:
  RankEvents(JobContext& job, Preemption& preemption);

  void begin();
  // True: this was the last of the workers.
  bool started(std::size_t index, const Started& started);
  void output(std::size_t index, const link::OutputChunk& chunk);
  void exited(std::size_t index, const Exited& exited);
  void start_failed(std::size_t index, const StartFailed& failed);
  // Tells the other hosts about the ranks of a lost host.
  void lost(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss);
  void stalled(std::size_t index, const Stalled& stalled);
  void jax_service_lost(std::size_t index, const JaxServiceLost& lost);
  // Keeps a fault that a host reports of its devices after a failure, with the rank that uses the
  // device. Faults of devices that the job may not use are ignored.
  void device_trouble(std::size_t index, const DeviceTrouble& trouble);
  // Prints what has stalled, what the ranks are doing, and `more`: the wait graph of the store.
  void say_stall(const std::string& what, const std::string& more);

  RankEventRelay& relay() { return relay_; }
  MpiWorld& mpi() { return mpi_; }
  // Calls done with what each rank does and uses, within a second; `job` is for the caller to fill.
  using Described = std::function<void(const ctl::RanksDescription&)>;
  void describe(Described done, bool with_places = false);
  JobEvidence& evidence() { return evidence_; }
  RankLosses& losses() { return losses_; }

 private:
  // Null: this generation has no such rank, or another host has it.
  WorkerRecord* worker(std::size_t index, std::uint32_t generation, std::uint32_t rank);
  void ended(WorkerRecord& worker);
  void watch_remaining();
  void say_remaining();
  // For evidence_.
  bool send(std::size_t host, const Command& command) override;
  std::vector<HostRanks> ranks_by_host() override;
  bool is_running() override;
  WatchdogAbort watchdog_abort() override;
  void say(const std::string& text) override;
  void stall_lasts() override;

  JobContext& job_;
  Preemption& preemption_;
  RankEventRelay relay_;
  JobEvidence evidence_;
  MpiWorld mpi_;
  RankLosses losses_;
  boost::asio::steady_timer remaining_timer_;  // Since the last exit, while other ranks run.
  bool has_said_remaining_ = false;            // In this attempt.
};

}  // namespace ivy
