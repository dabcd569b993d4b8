// SPDX-License-Identifier: Apache-2.0
// A record of each rank of the present generation: its host, how it exited, which of its streams
// may still bring output. Pure; thread: any, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/job/host_clock.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/verdict.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct WorkerRecord {
  WorkerEnd end;
  bool ended = false;
  int open_streams = 2;
  std::size_t host = 0;
  bool mpi_joined = false;
  int rejoins = 0;                  // How often it was started again alone.
  std::int64_t started_at_ns = 0;   // Its present process; 0: with all the others.
  std::int64_t last_output_ns = 0;  // When it has printed last; 0: nothing yet.
  bool mpi_absent = false;          // It ended well, and has never called MPI_Init.

  bool has_failed() const { return ended && !end.status.success(); }
};

class JobWorkers {
 public:
  // Nothing is known of the workers of this plan yet, except where they run.
  void begin(const JobPlan& plan);
  // Between two generations there are none: what hosts still say belongs to no worker.
  void clear() {
    workers_.clear();
    attempt_end_.reset();
  }
  // Something other than a rank ended this attempt, and another attempt may follow: the ranks
  // stalled (--on-stall stop), or the store was lost. The first reason stays.
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
  // Null: there is no such rank, or it is not on this host.
  WorkerRecord* of(std::size_t host, std::uint32_t rank);

  void started(WorkerRecord& worker, int pid);
  void exited(WorkerRecord& worker, const Exited& exited, RelatedTime at);
  void start_failed(WorkerRecord& worker, const StartFailed& failed, RelatedTime at);
  // Another process will stand for the rank, whose last one has ended.
  void starts_again(WorkerRecord& worker);
  // No more events of it will arrive, and the job continues.
  void lost_with_host(WorkerRecord& worker, std::int64_t at_ns);
  // The host has reported: a worker of it that was never started has no streams to wait for.
  void host_reported(std::size_t host);

  bool all_started() const { return started_ == workers_.size(); }
  std::size_t running() const { return running_; }
  std::vector<std::size_t> hosts_by_rank() const;
  // Ranks of a host that have not ended, as far as is known.
  std::vector<std::uint32_t> unfinished_on(std::size_t host) const;
  // All output of the workers is here, except that of lost hosts.
  bool has_all_output(const std::function<bool(std::size_t host)>& is_lost) const;

 private:
  void ended(WorkerRecord& worker, RelatedTime at);

  std::vector<WorkerRecord> workers_;  // The index is the rank.
  std::size_t running_ = 0;
  std::size_t started_ = 0;
  std::optional<LauncherEnd> attempt_end_;
};

}  // namespace ivy
