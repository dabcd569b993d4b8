// SPDX-License-Identifier: Apache-2.0
// Ranks that fail while the job continues (--on-failure shrink or replace). Decides with
// plan/failure_policy.h, prints the decision, has ranks started again, reports processes that have
// ended to the store's host, and keeps a line about each for the summary. Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/plan/failure_policy.h"

namespace ivy {

class RankLosses {
 public:
  explicit RankLosses(JobContext& job);

  // Call when the workers of a generation are about to start.
  void begin();
  // A worker has failed. Returns whether the job continues, without it or with another process in
  // its place. is_preempted: the ranks have been given notice that the allocation ends.
  bool continues_after(WorkerRecord& worker, bool is_preempted);
  // A worker has failed and will not be replaced: its host need not keep it any longer.
  void abandon(const WorkerRecord& worker);
  // A host is lost. Returns whether the job continues without its ranks.
  bool continues_without(std::size_t host, const std::vector<std::uint32_t>& ranks,
                         const LauncherEnd& end);
  // --on-failure replace: returns whether other processes have the state that the ranks of a lost
  // host need.
  bool can_replace(std::size_t host) const;
  // The ranks of a lost host will be started on the spare that has got its node rank.
  void replace_host(const std::vector<std::uint32_t>& ranks, std::size_t spare,
                    const LauncherEnd& end);
  // Tells the store that a process of this rank has ended, unless the store's own host knows it.
  void notify_store(const WorkerRecord& worker);
  // Lines for the summary: one for each process that was lost.
  const std::vector<std::string>& lines() const { return lines_; }
  // How many of these were restarted; the job continues without the others.
  std::size_t replaced() const { return replaced_; }

 private:
  FailureFacts facts_of(const WorkerRecord& worker, bool is_preempted) const;
  void lose(WorkerRecord& worker);
  void replace(WorkerRecord& worker, std::chrono::milliseconds pause);
  std::string cause(const WorkerRecord& worker) const;
  bool is_on() const { return job_.options.on_failure != OnFailure::kRestart; }

  JobContext& job_;
  FailurePolicy policy_;
  std::vector<std::string> lines_;
  std::size_t replaced_ = 0;
};

}  // namespace ivy
