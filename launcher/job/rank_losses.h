// SPDX-License-Identifier: Apache-2.0
// Ranks that fail while the job continues (--on-failure shrink, replace): decides with
// plan/failure_policy.h, prints the decision, has ranks started again, reports processes that have
// exited to the store's host, and keeps a line of each for the summary. Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/job_context.h"
#include "launcher/plan/failure_policy.h"

namespace ivy {

class RankLosses {
 public:
  explicit RankLosses(JobContext& job);

  // The workers of a generation are about to start.
  void begin();
  // True: the job continues without this worker, which has failed, or with another process in its
  // place. is_preempted: the ranks have been told that the allocation ends.
  bool goes_on_after(WorkerRecord& worker, bool is_preempted);
  // This worker has failed, and is neither a loss nor replaced.
  void forgo(const WorkerRecord& worker);
  // True: the job continues without these ranks of a lost host.
  bool goes_on_without(std::size_t host, const std::vector<std::uint32_t>& ranks,
                       const LauncherEnd& end);
  // A process of this rank has ended, on another host than the store's.
  void tell_store(const WorkerRecord& worker);
  // One line for each process that was lost, for the summary.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  FailureFacts facts_of(const WorkerRecord& worker, bool is_preempted) const;
  bool lose(WorkerRecord& worker);
  bool replace(WorkerRecord& worker, std::chrono::milliseconds pause);
  std::string cause(const WorkerRecord& worker) const;
  bool is_on() const { return job_.options.on_failure != OnFailure::kRestart; }

  JobContext& job_;
  FailurePolicy policy_;
  std::vector<std::string> lines_;
};

}  // namespace ivy
