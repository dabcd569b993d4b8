// SPDX-License-Identifier: Apache-2.0
// Every pair of state and event of a worker, allowed or not.
#include "agent/node/workers/worker_state.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace ivy {
namespace {

using enum WorkerState;
using enum WorkerEvent;

constexpr WorkerState kStates[] = {kPlanned, kRunning, kQuiet, kDraining, kDone, kFailed};
constexpr WorkerEvent kEvents[] = {kSpawned, kSpawnFailed, kOutputEnded, kExited};

TEST(WorkerStateTest, AllowsExactlyTheRowsOfTheTable) {
  const std::map<std::pair<WorkerState, WorkerEvent>, WorkerState> rows{
      {{kPlanned, kSpawned}, kRunning},   {{kPlanned, kSpawnFailed}, kFailed},
      {{kRunning, kOutputEnded}, kQuiet}, {{kRunning, kExited}, kDraining},
      {{kQuiet, kExited}, kDone},         {{kDraining, kOutputEnded}, kDone},
  };
  for (const WorkerState state : kStates) {
    for (const WorkerEvent event : kEvents) {
      const auto row = rows.find({state, event});
      const std::optional<WorkerState> next = next_state(state, event);
      EXPECT_EQ(next.has_value(), row != rows.end()) << static_cast<int>(state);
      if (row != rows.end()) {
        EXPECT_EQ(next, row->second) << static_cast<int>(state);
      }
    }
  }
}

TEST(WorkerStateTest, DistinguishesRunningAndFinishedWorkers) {
  for (const WorkerState state : kStates) {
    EXPECT_EQ(is_alive(state), state == kRunning || state == kQuiet) << static_cast<int>(state);
    EXPECT_EQ(is_over(state), state == kDone || state == kFailed) << static_cast<int>(state);
  }
}

}  // namespace
}  // namespace ivy
