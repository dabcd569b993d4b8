// Ranks that end badly while the job goes on (--on-failure shrink, replace): decides with
// plan/failure_policy.h, says it, has ranks started again, tells the store's host which processes
// have ended, and remembers what the summary names. Thread: the loop's.
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
  // True: the job goes on without this worker, which has ended badly, or with another process in
  // its place. is_preempted: the ranks have been told that the allocation ends.
  bool goes_on_after(WorkerRecord& worker, bool is_preempted);
  // This worker has ended badly, and is neither a loss nor replaced.
  void forgo(const WorkerRecord& worker);
  // True: the job goes on without these ranks of a host that is lost.
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
