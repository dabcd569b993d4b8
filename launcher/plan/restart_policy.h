// SPDX-License-Identifier: Apache-2.0
// Whether a group that has failed runs again, and when. Pure: facts in, a decision out. Thread:
// any, one at a time.
//
// The pause before a restart is 1 s, and doubles up to 30 s as long as attempts fail within 10 s of
// their start. An attempt that lived longer has made progress: the pause is 1 s again. Five quick
// failures in a row end the job, however many restarts are left: up to --max-restarts 4 every
// restart is made, above it a script that cannot work does not keep its hosts for hours.
//
// A lost host of --nnodes MIN:MAX uses up no restart, since hosts that may be lost are bounded by
// themselves, and is no quick failure of the script; an attempt that had lived long ends the row.
#pragma once

#include <chrono>
#include <string>

namespace ivy {

struct RestartLimits {
  int max_restarts = 0;
  std::chrono::milliseconds first_pause{1'000};
  std::chrono::milliseconds longest_pause{30'000};
  std::chrono::milliseconds quick{10'000};  // An attempt that fails sooner has made no progress.
  int max_quick_failures = 5;
};

// The end of one attempt, after all of its processes have exited.
struct AttemptFacts {
  int restarts = 0;                    // Restarts before it, less those after a lost host.
  std::chrono::milliseconds lived{0};  // From its start to its first failure.
  // A worker is the first cause (exit, signal, out of memory), or a stall, or the lost store.
  bool worker_failed = false;
  bool host_lost = false;        // A lost host is the first cause, and the others are enough.
  bool could_not_start = false;  // Some worker's program was never executed.
  bool has_leftovers = false;    // A process of it could not be ended.
  bool job_is_ending = false;    // Ctrl-C, --timeout, a lost host: the launcher has its own reason.
};

struct RestartDecision {
  bool restarts = false;
  std::chrono::milliseconds pause{0};
  // Tells the user why the job is not restarted although a restart is left and a worker failed;
  // else empty.
  std::string why_not;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  // Once for each attempt, in order.
  RestartDecision decide(const AttemptFacts& facts);
  int max_restarts() const { return limits_.max_restarts; }

 private:
  RestartLimits limits_;
  int quick_failures_ = 0;  // Quick failures in a row.
};

}  // namespace ivy
