// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/restart_policy.h"

#include <algorithm>

namespace ivy {
namespace {

using std::chrono::milliseconds;

RestartDecision no_restart(std::string why_not = {}) {
  return {.restarts = false, .pause = {}, .why_not = std::move(why_not)};
}

}  // namespace

RestartDecision RestartPolicy::decide(const AttemptFacts& facts) {
  const int left = limits_.max_restarts - facts.restarts;
  if (facts.job_is_ending) return no_restart();
  if (!facts.host_lost && (!facts.worker_failed || left <= 0)) return no_restart();
  if (facts.could_not_start)
    return no_restart("a worker could not be started, and a retry would fail the same way");
  if (facts.has_leftovers) return no_restart("some processes of this attempt could not be killed");
  if (facts.run_time >= limits_.quick) {
    quick_failures_ = 0;
  } else if (!facts.host_lost) {
    ++quick_failures_;
  }
  if (quick_failures_ >= limits_.max_quick_failures)
    return no_restart(std::to_string(quick_failures_) + " attempts in a row failed within " +
                      std::to_string(limits_.quick / std::chrono::seconds(1)) +
                      " s of their start; " + std::to_string(left) + " of " +
                      std::to_string(limits_.max_restarts) + " restarts are not used");
  milliseconds pause = limits_.first_pause;
  for (int failure = 1; failure < quick_failures_; ++failure)
    pause = std::min(pause * 2, limits_.longest_pause);
  return {.restarts = true, .pause = std::min(pause, limits_.longest_pause), .why_not = {}};
}

}  // namespace ivy
