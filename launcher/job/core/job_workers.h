// SPDX-License-Identifier: Apache-2.0
// The ranks of the present generation: a record of each, with its host, its end, and the number of
// its output streams that are still open. Pure. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/job/hosts/host_clock.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/verdict.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// "Worker" means the process of a rank; with --on-failure replace, a rank may get another one.
struct WorkerRecord {
  WorkerEnd end;                    // How it ended, once `ended`.
  bool ended = false;               // Its process has exited, could not be started, or was lost.
  int open_streams = 2;             // Streams that may still bring output; 0 or less: none.
  std::size_t host = 0;             // Index of its host.
  bool mpi_joined = false;          // It has called MPI_Init.
  int rejoins = 0;                  // How often only this rank was restarted.
  std::int64_t started_at_ns = 0;   // When its present process was started; 0: with all the others.
  std::int64_t last_output_ns = 0;  // When it last printed something; 0: never.
  bool mpi_absent = false;          // It succeeded without ever having called MPI_Init.

  bool has_failed() const { return ended && !end.status.is_success(); }
};

class JobWorkers {
 public:
  // Begins a generation: the workers of this plan have not started yet.
  void begin(const JobPlan& plan);
  // Call between two generations: later messages of hosts belong to no worker.
  void clear() {
    workers_.clear();
    attempt_end_.reset();
  }
  // Something other than a rank ended this attempt, and another attempt may follow: the ranks
  // stalled (--on-stall stop), or the store was lost. Keeps the first reason.
  void attempt_ends(LauncherEnd end) {
    if (!attempt_end_) attempt_end_ = std::move(end);
  }
  const std::optional<LauncherEnd>& attempt_end() const { return attempt_end_; }
  bool has_stalled() const {
    return attempt_end_ && attempt_end_->reason == LauncherReason::kStalled;
  }

  auto begin() const { return workers_.begin(); }
  auto end() const { return workers_.end(); }
  std::size_t size() const { return workers_.size(); }
  bool empty() const { return workers_.empty(); }
  WorkerRecord& operator[](std::size_t rank) { return workers_[rank]; }
  const WorkerRecord& operator[](std::size_t rank) const { return workers_[rank]; }
  // Returns the record of a rank on this host; null if the host does not have it.
  WorkerRecord* of(std::size_t host, std::uint32_t rank);

  void started(WorkerRecord& worker, int pid);
  void exited(WorkerRecord& worker, const Exited& exited, RelatedTime at);
  void start_failed(WorkerRecord& worker, const StartFailed& failed, RelatedTime at);
  // The rank's process has exited, and another one will be started in its place.
  void starts_again(WorkerRecord& worker);
  // The rank was lost with its host, and a process on this host will take its place.
  void moves(WorkerRecord& worker, std::size_t host, const std::string& name);
  // The rank is lost with its host, and the job continues: no more events of it will arrive.
  void lost_with_host(WorkerRecord& worker, std::int64_t at_ns);
  // The host has reported: its workers that were never started have no output to wait for.
  void host_reported(std::size_t host);

  // Every worker has been started.
  bool all_started() const { return started_ == workers_.size(); }
  std::size_t running() const { return running_; }  // Workers that have not ended.
  // The host of each rank.
  std::vector<std::size_t> hosts_by_rank() const;
  // Returns the ranks of a host that have not ended, as far as is known.
  std::vector<std::uint32_t> unfinished_on(std::size_t host) const;
  // True if all output of the workers has arrived, except from lost hosts.
  bool has_all_output(const std::function<bool(std::size_t host)>& is_lost) const;

 private:
  void ended(WorkerRecord& worker, RelatedTime at);

  std::vector<WorkerRecord> workers_;  // The index is the rank.
  std::size_t running_ = 0;
  std::size_t started_ = 0;
  std::optional<LauncherEnd> attempt_end_;
};

}  // namespace ivy
