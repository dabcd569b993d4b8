// SPDX-License-Identifier: Apache-2.0
// The states of one worker as a table. Pure; thread: any.
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
  kQuiet,     // Running, but no process can write to its pipes.
  kDraining,  // Its process has exited; its pipes contain output or are held by a grandchild.
  kDone,      // The process has exited, and the pipes are closed.
  kFailed,    // It could not be started.
};

enum class WorkerEvent { kSpawned, kSpawnFailed, kOutputEnded, kExited };

// Returns the state after `event`, or nothing if the event cannot happen in this state.
std::optional<WorkerState> next_state(WorkerState state, WorkerEvent event);

// Returns true if the worker's own process is alive.
bool is_alive(WorkerState state);
// Returns true if neither an exit nor output of this worker can follow.
bool is_over(WorkerState state);

}  // namespace ivy
