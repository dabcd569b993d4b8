// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/core_split.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

// Two packages with two nodes each, four cores a node with two threads each, two caches a node.
std::vector<CoreFacts> large_machine() {
  std::vector<CoreFacts> cores;
  for (int core = 0; core < 16; ++core) {
    CoreFacts facts;
    facts.set_processors(std::to_string(core) + "," + std::to_string(core + 16));
    facts.set_numa_node(core / 4);
    facts.set_package(core / 8);
    facts.set_l3(core / 2);
    cores.push_back(facts);
  }
  return cores;
}

// As on a laptop or in a container: only the processors are known.
std::vector<CoreFacts> plain_machine(int count) {
  std::vector<CoreFacts> cores;
  for (int core = 0; core < count; ++core) {
    CoreFacts facts;
    facts.set_processors(std::to_string(core));
    facts.set_numa_node(-1);
    facts.set_package(-1);
    facts.set_l3(-1);
    cores.push_back(facts);
  }
  return cores;
}

// Returns for instance "0-1,16-17@0 | ...": each worker's processors, NUMA node and, if above one,
// number of sharers.
std::string shown(const std::vector<CoreShare>& shares) {
  std::string text;
  for (const CoreShare& share : shares) {
    text += (text.empty() ? "" : " | ") + core_list_text(share.processors);
    if (share.memory_node) text += "@" + std::to_string(*share.memory_node);
    if (share.sharers > 1) text += "x" + std::to_string(share.sharers);
  }
  return text;
}

struct Case {
  BindChoice unit;
  std::vector<int> near_nodes;
  std::string expected;
};

TEST(CoreSplitTest, DividesALargeMachine) {
  using enum BindChoice;
  const Case cases[] = {
      {kCore, {-1}, "0-3,16-19@0"},
      {kCore, {-1, -1, -1, -1}, "0-3,16-19@0 | 4-7,20-23@1 | 8-11,24-27@2 | 12-15,28-31@3"},
      {kCore, {2, 2}, "8-9,24-25@2 | 10-11,26-27@2"},
      {kCore, {2, 2, 2}, "8,24@2 | 9,25@2 | 10-11,26-27@2"},
      {kCore, {0, 3, 0}, "0-1,16-17@0 | 12-15,28-31@3 | 2-3,18-19@0"},
      {kCore,
       {1, 1, 1, 1, 1, 1, 1, 1},
       "4,20@1x2 | 4,20@1x2 | 5,21@1x2 | 5,21@1x2 | 6,22@1x2 | 6,22@1x2 | 7,23@1x2 | 7,23@1x2"},
      {kL3, {0, 0}, "0-1,16-17@0 | 2-3,18-19@0"},
      {kL3, {0, 0, 0}, "0-1,16-17@0x2 | 2-3,18-19@0 | 0-1,16-17@0x2"},
      {kNuma, {3, 3, 1}, "12-15,28-31@3x2 | 12-15,28-31@3x2 | 4-7,20-23@1"},
      {kNuma, {9}, "0-3,16-19@0"},  // This process may not use node 9.
      {kSocket, {3, 0}, "8-15,24-31 | 0-7,16-23"},
      {kNone, {0}, ""},
      {kAuto, {0}, ""}};
  for (const Case& test : cases)
    EXPECT_EQ(shown(split_cores(large_machine(), test.unit, test.near_nodes)), test.expected);
}

// A cgroup leaves two cores of one node and fourteen of the other.
TEST(CoreSplitTest, DividesNodesOfDifferentSizes) {
  std::vector<CoreFacts> cores = plain_machine(16);
  for (std::size_t core = 0; core < cores.size(); ++core)
    cores[core].set_numa_node(core < 2 ? 0 : 1);
  for (int workers = 1; workers <= 16; ++workers) {
    const std::vector<CoreShare> shares = split_cores(
        cores, BindChoice::kCore, std::vector<int>(static_cast<std::size_t>(workers), -1));
    CoreList all;
    for (const CoreShare& share : shares) {
      EXPECT_EQ(share.sharers, 1) << workers;
      EXPECT_GE(share.processors.size(), workers <= 8 ? 2U : 1U) << workers;
      all = joined_cores(all, share.processors);
    }
    // With few workers, each gets more of the large node than the small one could add.
    EXPECT_EQ(all.size(), workers < 7 ? 14U : 16U) << workers;
  }
  EXPECT_EQ(shown(split_cores(cores, BindChoice::kCore, {1, -1, -1, 0})),
            "2-5@1 | 6-10@1 | 11-15@1 | 0-1@0")
      << "workers near a device count too";
}

TEST(CoreSplitTest, UsesProcessorNumbersWithoutATopology) {
  using enum BindChoice;
  EXPECT_EQ(shown(split_cores(plain_machine(5), kCore, {-1, -1})), "0-1 | 2-4");
  EXPECT_EQ(shown(split_cores(plain_machine(2), kNuma, {-1, -1})), "0-1x2 | 0-1x2");
  EXPECT_EQ(shown(split_cores(plain_machine(2), kSocket, {0})), "0-1");
  EXPECT_EQ(shown(split_cores(plain_machine(1), kCore, {-1, -1, -1})), "0x3 | 0x3 | 0x3");
  EXPECT_EQ(shown(split_cores({}, kCore, {-1})), "");
}

// For all numbers: each core is used by one worker, and shares differ by at most one core.
TEST(CoreSplitTest, DividesEvenly) {
  for (int cores = 1; cores <= 40; ++cores) {
    for (int workers = 1; workers <= cores; ++workers) {
      const std::vector<CoreShare> shares =
          split_cores(plain_machine(cores), BindChoice::kCore,
                      std::vector<int>(static_cast<std::size_t>(workers), -1));
      CoreList all;
      std::size_t least = 1000;
      std::size_t most = 0;
      for (const CoreShare& share : shares) {
        EXPECT_TRUE(common_cores(all, share.processors).empty());
        all = joined_cores(all, share.processors);
        least = std::min(least, share.processors.size());
        most = std::max(most, share.processors.size());
      }
      EXPECT_EQ(all.size(), static_cast<std::size_t>(cores));
      EXPECT_LE(most - least, 1u);
    }
  }
}

}  // namespace
}  // namespace ivy
