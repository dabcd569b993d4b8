// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/failure_policy.h"

#include <algorithm>
#include <utility>

namespace ivy {
namespace {

FailureDecision end_of_job(std::string why_not = {}) {
  return {.action = FailureAction::kEndJob, .pause = {}, .why_not = std::move(why_not)};
}

}  // namespace

FailureDecision FailurePolicy::decide(const FailureFacts& facts) {
  if (limits_.on_failure == OnFailure::kRestart || !facts.job_runs) return end_of_job();
  if (facts.could_not_start)
    return end_of_job("it could not be started, and a retry would fail the same way");
  if (facts.live == 0) return end_of_job("no other worker is left");
  const bool replaces = limits_.on_failure == OnFailure::kReplace && !facts.is_preempted;
  return replaces ? replace(facts) : shrink(facts);
}

FailureDecision FailurePolicy::shrink(const FailureFacts& facts) const {
  const int left = facts.live + facts.done;
  if (left < limits_.min_workers)
    return end_of_job(std::to_string(left) + (left == 1 ? " worker is" : " workers are") +
                      " left, and --min-workers is " + std::to_string(limits_.min_workers));
  return {.action = FailureAction::kContinue, .pause = {}, .why_not = {}};
}

FailureDecision FailurePolicy::replace(const FailureFacts& facts) {
  if (facts.survivors == 0)
    return end_of_job("no worker is left from which a new one could get the state");
  if (replacements_ >= limits_.max_replacements)
    return end_of_job(
        std::to_string(replacements_) + (replacements_ == 1 ? " worker was" : " workers were") +
        " replaced, and --max-restarts is " + std::to_string(limits_.max_replacements));
  quick_failures_ = facts.run_time >= limits_.quick ? 0 : quick_failures_ + 1;
  if (quick_failures_ >= limits_.max_quick_failures)
    return end_of_job(std::to_string(quick_failures_) + " workers in a row failed within " +
                      std::to_string(limits_.quick / std::chrono::seconds(1)) +
                      " s of their start");
  ++replacements_;
  std::chrono::milliseconds pause{0};
  if (quick_failures_ > 0) pause = limits_.first_pause;
  for (int failure = 1; failure < quick_failures_; ++failure)
    pause = std::min(pause * 2, limits_.longest_pause);
  return {.action = FailureAction::kReplace, .pause = pause, .why_not = {}};
}

}  // namespace ivy
