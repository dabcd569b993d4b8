// SPDX-License-Identifier: Apache-2.0
// The life of one worker as a table. Pure; thread: any.
//
//   planned --spawned--> running --exited--> draining --output ended--> done
//      |                    |                                            ^
//      |                    +--output ended--> quiet --------exited------+
//      +--spawn failed--> failed
#pragma once

#include <optional>

namespace ivy {

enum class WorkerState {
  kPlanned,
  kRunning,
  kQuiet,     // Running, but no process can write to its pipes any longer.
  kDraining,  // Its process has ended; its pipes still hold output, or a grandchild holds them.
  kDone,      // Process and pipes have ended.
  kFailed,    // It could not be started.
};

enum class WorkerEvent { kSpawned, kSpawnFailed, kOutputEnded, kExited };

// Returns the state after `event`, or nothing if the event cannot happen in this state.
std::optional<WorkerState> next_state(WorkerState state, WorkerEvent event);

// True if the worker's own process is alive.
bool is_alive(WorkerState state);
// True if neither an exit nor output of this worker can follow.
bool is_over(WorkerState state);

}  // namespace ivy
