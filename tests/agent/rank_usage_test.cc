// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/rank_usage.h"

#include <gtest/gtest.h>

#include <vector>

namespace ivy {
namespace {

// Rank 0 has a child and uses two devices, one of them measured; rank 1 uses none.
TEST(RankUsageTest, FindsDevicesByTheMemoryOfTheRanksProcesses) {
  const auto process = [](pid_t pid, pid_t parent) {
    ProcessStat stat;
    stat.pid = pid;
    stat.parent = parent;
    return stat;
  };
  const std::vector<HeldMemory> held{{"GPU 0", "GPU-a", 100, 60, {{10, 40, ""}, {99, 50, ""}}},
                                     {"GPU 1", "GPU-b", 7, -1, {{11, 7, ""}}},
                                     {"GPU 2", "GPU-c", 9, 100, {{99, 9, ""}}}};
  Operations answer;
  add_usage({{0, 10}, {1, 20}}, {process(10, 1), process(11, 10), process(20, 1)}, held, answer);
  ASSERT_EQ(answer.usage_size(), 2);
  EXPECT_EQ(answer.usage(0).devices(), 2u);
  EXPECT_EQ(answer.usage(0).device_bytes(), 47u);
  EXPECT_EQ(answer.usage(0).device_percent(), 60);
  EXPECT_EQ(answer.usage(1).devices(), 0u);
}

}  // namespace
}  // namespace ivy
