// SPDX-License-Identifier: Apache-2.0
// Decides whether and when a failed group is restarted. Pure: takes facts and returns a decision.
// Not thread-safe.
//
// The pause before a restart is 1 s, and doubles up to 30 s while attempts fail within 10 s of
// their start. An attempt that lived longer has made progress and resets the pause to 1 s. Five
// quick failures in a row end the job even if restarts are left. So up to --max-restarts 4 every
// restart is used; with more, a script that cannot work does not occupy its hosts for hours.
//
// With --progress-match, an attempt has made progress if its ranks printed a larger step than those
// of all earlier attempts, and with --progress-file if its newest checkpoint is newer, however long
// it ran; with both flags, either suffices. Three attempts in a row without progress end the job.
// Attempts whose progress is unknown neither count nor end such a row. --restart-on and
// --never-restart choose by the cause of the attempt's end.
//
// Without these flags, attempts that fail after the same number of operations cause a note only:
// see "Operations are no measure of progress" in launcher/job/README.md.
//
// The loss of a host with --nnodes MIN:MAX uses up no restart, since the number of hosts limits it,
// and does not count as a quick failure; after a long attempt it resets the count.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/cause_list.h"
#include "launcher/plan/progress_file.h"

namespace ivy {

struct RestartLimits {
  int max_restarts = 0;
  std::chrono::milliseconds first_pause{1'000};
  std::chrono::milliseconds longest_pause{30'000};
  std::chrono::milliseconds quick{10'000};  // An attempt that fails sooner has made no progress.
  int max_quick_failures = 5;
  std::vector<Cause> restart_on = {};  // Empty: all causes.
  std::vector<Cause> never_restart = {};
  // --progress-match, --progress-file: progress is measured by these instead of run time.
  bool measures_steps = false;
  bool measures_files = false;
  int max_without_progress = 3;
  // Attempts in a row that fail in the same place before that is noted.
  int noted_in_one_place = 3;
};

// Facts about an attempt, after all of its processes have exited.
struct AttemptFacts {
  int restarts = 0;                       // Earlier restarts, without those after a lost host.
  std::chrono::milliseconds run_time{0};  // From its start to its first failure.
  // The first cause is a worker (exit, signal, out of memory), a stall, or the lost store.
  bool worker_failed = false;
  bool host_lost = false;        // The first cause is a lost host, and enough hosts are left.
  bool could_not_start = false;  // Some worker's program was never executed.
  bool has_leftovers = false;    // Some process could not be killed.
  bool job_is_ending = false;    // Ctrl-C, --timeout, a lost host: ended for another reason.
  AttemptCause cause;
  std::optional<double> step;  // --progress-match: the largest step of the attempt, if any.
  ProgressMove file = ProgressMove::kUnknown;  // --progress-file
  std::string file_state;                      // ProgressFile::text()
  int first_rank = -1;                         // The rank that failed first; -1: none.
  std::uint64_t operations = 0;  // Operations of ivycomm that it had finished; 0: unknown.
};

struct RestartDecision {
  bool restarts = false;
  std::chrono::milliseconds pause{0};
  // Tells the user why the job is not restarted although a worker failed and restarts are left;
  // empty otherwise.
  std::string why_not;
  // That reason is that attempts make no progress, so that the job should not be submitted again.
  bool is_futile = false;
  std::string note = {};  // For the user; empty: none.
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(std::move(limits)) {}

  // Call it once for each attempt, in order.
  RestartDecision decide(const AttemptFacts& facts);
  int max_restarts() const { return limits_.max_restarts; }
  std::chrono::milliseconds first_pause() const { return limits_.first_pause; }

 private:
  enum class Progress { kMade, kNone, kUnknown };
  Progress progress_of(const AttemptFacts& facts);
  bool measures() const { return limits_.measures_steps || limits_.measures_files; }
  std::string note_on_place(const AttemptFacts& facts);
  std::string excluded(const AttemptCause& cause) const;
  RestartDecision too_many_failures(int left, const AttemptFacts& facts) const;

  RestartLimits limits_;
  int failures_ = 0;  // Failures in a row without progress.
  std::optional<double> best_step_;
  int in_one_place_ = 0;  // Attempts in a row that failed in the place of place_.
  AttemptFacts place_;    // The first of them; the text of its cause has expired.
};

}  // namespace ivy
