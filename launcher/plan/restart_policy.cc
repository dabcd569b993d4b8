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
  const Progress progress = progress_of(facts);
  if (progress == Progress::kMade) failures_ = 0;
  if (progress == Progress::kNone && !facts.host_lost) ++failures_;
  const int most = measures() ? limits_.max_without_progress : limits_.max_quick_failures;
  if (failures_ >= most) return too_many_failures(left, facts);
  milliseconds pause = limits_.first_pause;
  for (int failure = 1; failure < failures_; ++failure)
    pause = std::min(pause * 2, limits_.longest_pause);
  return {.restarts = true,
          .pause = std::min(pause, limits_.longest_pause),
          .why_not = {},
          .note = note_on_place(facts)};
}

// Also remembers the step that later attempts must exceed.
RestartPolicy::Progress RestartPolicy::progress_of(const AttemptFacts& facts) {
  if (!measures()) return facts.run_time >= limits_.quick ? Progress::kMade : Progress::kNone;
  const bool has_stepped =
      limits_.measures_steps && facts.step && (!best_step_ || *facts.step > *best_step_);
  if (has_stepped) best_step_ = facts.step;
  if (has_stepped || (limits_.measures_files && facts.file == ProgressMove::kForward))
    return Progress::kMade;
  return limits_.measures_files && facts.file == ProgressMove::kUnknown ? Progress::kUnknown
                                                                        : Progress::kNone;
}

// Returns a note if attempts in a row failed in the same place: the same rank, in the same way,
// after the same number of operations.
std::string RestartPolicy::note_on_place(const AttemptFacts& facts) {
  if (measures() || facts.operations == 0 || !facts.cause.status) {
    in_one_place_ = 0;
    return "";
  }
  // Timers and messages of frameworks make the numbers of equal runs differ a little.
  const std::uint64_t most = std::max(facts.operations, place_.operations);
  const bool is_same = in_one_place_ > 0 && facts.first_rank == place_.first_rank &&
                       *facts.cause.status == *place_.cause.status &&
                       most - std::min(facts.operations, place_.operations) <= most / 100;
  in_one_place_ = is_same ? in_one_place_ + 1 : 1;
  if (!is_same) {
    place_ = facts;
    place_.cause.stderr_tail = {};
  }
  if (in_one_place_ != limits_.noted_in_one_place) return "";
  return std::to_string(in_one_place_) + " attempts in a row failed in the same place: rank " +
         std::to_string(facts.first_rank) + " with " + cause_text(facts.cause) + " after " +
         std::to_string(facts.operations) +
         " operations of ivycomm; with --progress-file or --progress-match, attempts without "
         "progress end the job";
}

// Returns why the flags exclude a restart after this cause; empty: they do not.
std::string RestartPolicy::excluded(const AttemptCause& cause) const {
  if (const Cause* never = find_cause(limits_.never_restart, cause))
    return cause_text(cause) + ": --never-restart has " + never->text;
  if (limits_.restart_on.empty() || find_cause(limits_.restart_on, cause) != nullptr) return "";
  return cause_text(cause) + " is not a cause of --restart-on";
}

RestartDecision RestartPolicy::too_many_failures(int left, const AttemptFacts& facts) const {
  const std::string unused = "; " + std::to_string(left) + " of " +
                             std::to_string(limits_.max_restarts) + " restarts are not used";
  if (!measures())
    return no_restart(std::to_string(failures_) + " attempts in a row failed within " +
                      std::to_string(limits_.quick / std::chrono::seconds(1)) +
                      " s of their start" + unused);
  std::string why;
  if (limits_.measures_steps)
    why = best_step_ ? "none exceeded step " + step_text(*best_step_)
                     : "none printed a step that matches --progress-match";
  if (limits_.measures_files)
    why += (why.empty() ? "--progress-file: " : "; --progress-file: ") + facts.file_state;
  return no_restart(
      std::to_string(failures_) + " attempts in a row made no progress (" + why + ")" + unused,
      /*is_futile=*/true);
}

}  // namespace ivy
