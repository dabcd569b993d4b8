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
// A host is trusted only for its own ranks: see worker().
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <string>
#include <vector>

#include "launcher/hang/job_evidence.h"
#include "launcher/job/core/job_context.h"
#include "launcher/job/ranks/mpi_world.h"
#include "launcher/job/ranks/preemption.h"
#include "launcher/job/ranks/rank_event_relay.h"
#include "launcher/job/ranks/rank_losses.h"

namespace ivy {

class RankEvents final : private ExaminedJob {
 public:
  RankEvents(JobContext& job, Preemption& preemption);

  void begin();
  // Returns whether all workers have been started.
  bool started(std::size_t index, const Started& started);
  void output(std::size_t index, const session::OutputChunk& chunk);
  void exited(std::size_t index, const Exited& exited);
  void start_failed(std::size_t index, const StartFailed& failed);
  // Tells the other hosts about the ranks of a lost host.
  void lost(std::size_t index, const std::vector<std::uint32_t>& ranks, HostLoss loss);
  // A host reports a rank whose operation takes longer than --stall-timeout.
  void stalled(std::size_t index, const Stalled& stalled);
  void jax_service_lost(std::size_t index, const JaxServiceLost& lost);
  // Keeps a fault of a device that a host reports after a failure, with the rank that uses the
  // device. Ignores devices that the job may not use.
  void device_faults(std::size_t index, const DeviceFaults& faults);
  // Reports a stall: what has stalled, what each rank waits for, and `more`: the store's wait
  // graph.
  void report_stall(const std::string& what, const std::string& more);

  RankEventRelay& relay() { return relay_; }
  MpiWorld& mpi() { return mpi_; }
  // Calls done within a second with the operations and the usage of each rank. `job` is left for
  // the caller to fill in.
  using Described = std::function<void(const ctl::RanksDescription&)>;
  void describe(Described done, bool with_stacks = false);
  JobEvidence& evidence() { return evidence_; }
  RankLosses& losses() { return losses_; }

 private:
  // Returns the record of a rank; null if this generation does not have it on this host.
  WorkerRecord* worker(std::size_t index, std::uint32_t generation, std::uint32_t rank);
  void ended(WorkerRecord& worker);
  void watch_remaining();
  void begin_exit_timeout();
  void print_remaining();
  void print_remaining_ranks(const std::vector<std::string>& waits, const std::string& operations,
                             const std::vector<std::string>& places);
  // ExaminedJob, for evidence_.
  bool send(std::size_t host, const Command& command) override;
  std::vector<HostRanks> ranks_by_host() override;
  bool is_running() override;
  WatchdogAbort watchdog_abort() override;
  void print(const std::string& text) override;
  void stall_continues() override;

  JobContext& job_;
  Preemption& preemption_;
  RankEventRelay relay_;
  JobEvidence evidence_;
  MpiWorld mpi_;
  RankLosses losses_;
  boost::asio::steady_timer remaining_timer_;  // Runs since the last exit, while other ranks run.
  bool has_printed_remaining_ = false;         // print_remaining() has been called in this attempt.
  bool exit_timeout_runs_ = false;             // A rank of this attempt has exited with 0.
};

}  // namespace ivy
