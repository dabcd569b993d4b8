// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/worker_state.h"

#include <array>

namespace ivy {
namespace {

struct Row {
  WorkerState from;
  WorkerEvent event;
  WorkerState to;
};

constexpr std::array kRows{
    Row{WorkerState::kPlanned, WorkerEvent::kSpawned, WorkerState::kRunning},
    Row{WorkerState::kPlanned, WorkerEvent::kSpawnFailed, WorkerState::kFailed},
    Row{WorkerState::kRunning, WorkerEvent::kOutputEnded, WorkerState::kQuiet},
    Row{WorkerState::kRunning, WorkerEvent::kExited, WorkerState::kDraining},
    Row{WorkerState::kQuiet, WorkerEvent::kExited, WorkerState::kDone},
    Row{WorkerState::kDraining, WorkerEvent::kOutputEnded, WorkerState::kDone},
};

}  // namespace

std::optional<WorkerState> next_state(WorkerState state, WorkerEvent event) {
  for (const Row& row : kRows)
    if (row.from == state && row.event == event) return row.to;
  return std::nullopt;
}

bool is_alive(WorkerState state) {
  return state == WorkerState::kRunning || state == WorkerState::kQuiet;
}

bool is_over(WorkerState state) {
  return state == WorkerState::kDone || state == WorkerState::kFailed;
}

}  // namespace ivy
