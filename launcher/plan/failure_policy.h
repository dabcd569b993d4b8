// SPDX-License-Identifier: Apache-2.0
// Decides how a job continues after one of its workers has failed (--on-failure). Pure: facts in, a
// decision out. Not thread-safe.
//
//   restart  the job ends, and --max-restarts starts all workers again (restart_policy.h)
//   shrink   the others continue, as long as at least --min-workers of them are left
//   replace  the others continue, and this rank is restarted, at most --max-restarts times in total
//
// A rank is replaced immediately if its process had run for 10 s. After a shorter run the pause is
// 1 s, and doubles each time, up to 30 s. Five such quick failures in a row end the job. At least
// one remaining process must have the job's state; a replacement younger than 10 s does not have
// it.
#pragma once

#include <chrono>
#include <string>

#include "launcher/options/option_types.h"

namespace ivy {

struct FailureLimits {
  OnFailure on_failure = OnFailure::kRestart;
  int min_workers = 1;
  int max_replacements = 0;
  std::chrono::milliseconds first_pause{1'000};
  std::chrono::milliseconds longest_pause{30'000};
  std::chrono::milliseconds quick{10'000};
  int max_quick_failures = 5;
};

// Facts about a worker that has failed, and about the other workers.
struct FailureFacts {
  bool job_runs = false;         // The job is otherwise healthy: no stop has started.
  bool could_not_start = false;  // Its program was never executed.
  bool is_preempted = false;     // The ranks know that the allocation is ending.
  int live = 0;                  // Other workers that are running or about to be restarted,
  int survivors = 0;             // the number of these that have the job's state,
  int done = 0;                  // and other workers that exited successfully.
  std::chrono::milliseconds run_time{0};
};

enum class FailureAction { kEndJob, kContinue, kReplace };

struct FailureDecision {
  FailureAction action = FailureAction::kEndJob;
  std::chrono::milliseconds pause{0};  // From now until it is restarted.
  std::string why_not;                 // Why the job ends although the flag would let it continue.
};

class FailurePolicy {
 public:
  explicit FailurePolicy(const FailureLimits& limits) : limits_(limits) {}

  // Call it once for each worker that failed, in order.
  FailureDecision decide(const FailureFacts& facts);
  // Returns whether a process of this age has the job's state.
  bool is_survivor(int rejoins, std::chrono::milliseconds age) const {
    return rejoins == 0 || age >= limits_.quick;
  }
  int replacements() const { return replacements_; }
  const FailureLimits& limits() const { return limits_; }
  // Call it when all workers are about to restart.
  void begin_generation() { quick_failures_ = 0; }

 private:
  FailureDecision shrink(const FailureFacts& facts) const;
  FailureDecision replace(const FailureFacts& facts);

  FailureLimits limits_;
  int replacements_ = 0;
  int quick_failures_ = 0;
};

}  // namespace ivy
