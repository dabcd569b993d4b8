// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/restart_policy.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace ivy {
namespace {

using std::chrono::milliseconds;

RestartDecision no_restart(std::string why_not = {}, bool is_futile = false) {
  return {.restarts = false, .pause = {}, .why_not = std::move(why_not), .is_futile = is_futile};
}

std::string step_text(double step) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", step);
  return text;
}

// Returns the cause as a user would write it in a list.
std::string cause_text(const AttemptCause& cause) {
  if (cause.out_of_memory) return "oom";
  if (cause.status) return describe(*cause.status);
  return cause.host_lost ? "host-lost" : cause.store_lost ? "store-lost" : "stall";
}

}  // namespace

RestartDecision RestartPolicy::decide(const AttemptFacts& facts) {
  const int left = limits_.max_restarts - facts.restarts;
  if (facts.job_is_ending) return no_restart();
  if (!facts.host_lost && (!facts.worker_failed || left <= 0)) return no_restart();
  if (facts.could_not_start)
    return no_restart("a worker could not be started, and a retry would fail the same way");
  if (facts.has_leftovers) return no_restart("some processes of this attempt could not be killed");
  if (std::string excluded_by = excluded(facts.cause); !excluded_by.empty())
    return no_restart(std::move(excluded_by));
  if (has_progressed(facts)) {
    failures_ = 0;
  } else if (!facts.host_lost) {
    ++failures_;
  }
  const int most =
      limits_.measures_progress ? limits_.max_without_progress : limits_.max_quick_failures;
  if (failures_ >= most) return too_many_failures(left);
  milliseconds pause = limits_.first_pause;
  for (int failure = 1; failure < failures_; ++failure)
    pause = std::min(pause * 2, limits_.longest_pause);
  return {.restarts = true, .pause = std::min(pause, limits_.longest_pause), .why_not = {}};
}

// Also remembers the step that later attempts must exceed.
bool RestartPolicy::has_progressed(const AttemptFacts& facts) {
  if (!limits_.measures_progress) return facts.run_time >= limits_.quick;
  if (!facts.step || (best_step_ && *facts.step <= *best_step_)) return false;
  best_step_ = facts.step;
  return true;
}

// Returns why the flags exclude a restart after this cause; empty: they do not.
std::string RestartPolicy::excluded(const AttemptCause& cause) const {
  if (const Cause* never = find_cause(limits_.never_restart, cause))
    return cause_text(cause) + ": --never-restart has " + never->text;
  if (limits_.restart_on.empty() || find_cause(limits_.restart_on, cause) != nullptr) return "";
  return cause_text(cause) + " is not a cause of --restart-on";
}

RestartDecision RestartPolicy::too_many_failures(int left) const {
  const std::string unused = "; " + std::to_string(left) + " of " +
                             std::to_string(limits_.max_restarts) + " restarts are not used";
  if (!limits_.measures_progress)
    return no_restart(std::to_string(failures_) + " attempts in a row failed within " +
                      std::to_string(limits_.quick / std::chrono::seconds(1)) +
                      " s of their start" + unused);
  return no_restart(std::to_string(failures_) + " attempts in a row made no progress (" +
                        (best_step_ ? "none exceeded step " + step_text(*best_step_)
                                    : "none printed a step that matches --progress-match") +
                        ")" + unused,
                    /*is_futile=*/true);
}

}  // namespace ivy
