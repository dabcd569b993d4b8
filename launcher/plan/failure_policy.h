// SPDX-License-Identifier: Apache-2.0
// Decides how a job continues after one of its workers has failed (--on-failure). Pure: facts in, a
// decision out. Thread: any, one at a time.
//
//   restart  the job ends, and --max-restarts starts all workers again (restart_policy.h)
//   shrink   the others continue, as long as --min-workers of them are left
//   replace  the same, and the rank alone is restarted, --max-restarts times in total
//
// A rank is replaced immediately if its process had run for 10 s; after a shorter run the pause is
// 1 s and doubles each time, up to 30 s. Five such quick failures in a row end the job. At least
// one process must be left that has the job's state: one that is not itself a replacement younger
// than 10 s.
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

// One worker has failed: facts about it and about the others.
struct FailureFacts {
  bool job_runs = false;         // The job is otherwise healthy: no stop has started.
  bool could_not_start = false;  // Its program has never been executed.
  bool is_preempted = false;     // The ranks know that the allocation ends.
  int living = 0;                // Other workers that run or are about to be started again,
  int survivors = 0;             // those of them that have the job's state,
  int done = 0;                  // and other workers that have ended well.
  std::chrono::milliseconds lived{0};
};

enum class FailureAction { kEndJob, kGoOn, kReplace };

struct FailureDecision {
  FailureAction action = FailureAction::kEndJob;
  std::chrono::milliseconds pause{0};  // From now until it is started again.
  std::string why_not;  // The reason why the job ends although the flag would let it continue.
};

class FailurePolicy {
 public:
  explicit FailurePolicy(const FailureLimits& limits) : limits_(limits) {}

  // Once for each worker that has ended badly, in order.
  FailureDecision decide(const FailureFacts& facts);
  // Returns whether a process of this age has the job's state.
  bool is_survivor(int rejoins, std::chrono::milliseconds age) const {
    return rejoins == 0 || age >= limits_.quick;
  }
  int replacements() const { return replacements_; }
  const FailureLimits& limits() const { return limits_; }
  // All workers are about to start again.
  void begin_generation() { quick_failures_ = 0; }

 private:
  FailureDecision shrink(const FailureFacts& facts) const;
  FailureDecision replace(const FailureFacts& facts);

  FailureLimits limits_;
  int replacements_ = 0;
  int quick_failures_ = 0;
};

}  // namespace ivy
