// SPDX-License-Identifier: Apache-2.0
// A host's results at the end of its part of a job: the supervisor's exit code, and the state of
// the output for a launcher that takes over. Pure; thread: any.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/node/workers/output_pump.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/link.h"

namespace ivy {

// Exit codes if SupervisorStart.tells_outcome is set; otherwise all but the second become 0.
inline constexpr int kSupervisorWell = 0;       // Every worker ended with 0.
inline constexpr int kSupervisorLeftovers = 1;  // Processes are left that cannot be ended.
inline constexpr int kSupervisorWorkerFailed = 10;
inline constexpr int kSupervisorStopped = 11;       // By a stop, before all workers had ended.
inline constexpr int kSupervisorLauncherLost = 12;  // The lease ended without a launcher.
inline constexpr int kSupervisorNothingRan = 13;    // No worker was ever started.

// The outcome of this generation's workers, derived from their events.
class JobOutcome {
 public:
  void note(const Event& event);
  void forget() { *this = JobOutcome(); }
  // Processes survived KILL: nothing may be started on this host.
  bool has_leftovers() const { return has_leftovers_; }
  // The exit code of a host without leftovers: one of the codes above.
  int exit_code(bool has_workers, bool launcher_lost) const;

 private:
  bool has_leftovers_ = false;
  bool worker_failed_ = false;     // It failed on its own, before any stop.
  bool worker_was_ended_ = false;  // It was ended after a stop.
};

// How far each stream of `generation` has been given to a launcher. `waiting` are the chunks that
// the session still holds: they will be sent to the new one.
TakenOver streams_taken_over(const std::vector<OutputPump::Progress>& progress,
                             const std::vector<link::OutputChunk>& waiting,
                             std::uint32_t generation);

}  // namespace ivy
