// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/node_ranks.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using Hosts = std::vector<std::size_t>;

std::vector<HostStanding> usable(std::size_t count) {
  return std::vector<HostStanding>(count, HostStanding{true, "", ""});
}

TEST(NodeRanksTest, GivesTheFirstHostsNodeRanks) {
  const NodeRanks ranks(3);
  EXPECT_EQ(ranks.hosts(), (Hosts{0, 1, 2}));
  EXPECT_TRUE(ranks.has(2));
  EXPECT_FALSE(ranks.has(3));
}

TEST(NodeRanksTest, ReplacesALostHostByTheFirstSpare) {
  NodeRanks ranks(3);
  std::vector<HostStanding> all = usable(5);
  EXPECT_TRUE(ranks.replace_unusable(all).empty());
  all[1].is_usable = false;
  const std::vector<HostReplacement> replaced = ranks.replace_unusable(all);
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].node_rank, 1u);
  EXPECT_EQ(replaced[0].host, 1u);
  EXPECT_EQ(replaced[0].spare, 3u);
  EXPECT_EQ(ranks.hosts(), (Hosts{0, 3, 2}));
  EXPECT_TRUE(ranks.replace_unusable(all).empty()) << "it was replaced already";
}

TEST(NodeRanksTest, ReplacesTheFirstHostAndASpareThatWasLost) {
  NodeRanks ranks(2);
  std::vector<HostStanding> all = usable(4);
  all[0].is_usable = false;
  ranks.replace_unusable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{2, 1}));
  all[2].is_usable = false;
  ranks.replace_unusable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{3, 1}));
}

TEST(NodeRanksTest, SkipsSparesThatCannotBeUsed) {
  NodeRanks ranks(2);
  std::vector<HostStanding> all = usable(4);
  all[1].is_usable = all[2].is_usable = false;
  ranks.replace_unusable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{0, 3}));
}

TEST(NodeRanksTest, KeepsNodeRanksThatNoSpareIsLeftFor) {
  NodeRanks ranks(3);
  std::vector<HostStanding> all = usable(4);
  all[0].is_usable = all[2].is_usable = false;
  EXPECT_EQ(ranks.replace_unusable(all).size(), 1u);
  EXPECT_EQ(ranks.hosts(), (Hosts{3, 1, 2}));
}

TEST(NodeRanksTest, PrefersTheNvlinkDomainThenTheSwitch) {
  std::vector<HostStanding> all = usable(6);
  all[0] = {true, "c/0", "core1.leaf1"};
  all[1] = {false, "c/1", "core1.leaf2"};
  all[2] = {true, "", "core2.leaf9"};
  all[3] = {true, "c/0", "core1.leaf3"};
  all[4] = {true, "c/0", "core1.leaf2"};
  all[5] = {true, "c/1", "core2.leaf9"};
  NodeRanks domain(2);
  domain.replace_unusable(all);
  EXPECT_EQ(domain.hosts(), (Hosts{0, 5}));
  all[5].nvlink_domain = "c/2";
  NodeRanks leaf(2);
  leaf.replace_unusable(all);
  EXPECT_EQ(leaf.hosts(), (Hosts{0, 4}));
  all[4].is_usable = false;
  NodeRanks core(2);
  core.replace_unusable(all);
  EXPECT_EQ(core.hosts(), (Hosts{0, 3}));
}

TEST(NodeRanksTest, ChoosesTheFirstUsableHosts) {
  NodeRanks ranks(2);
  std::vector<HostStanding> all = usable(4);
  all[0].is_usable = false;
  ranks.choose_usable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{1, 2}));
  all[1].is_usable = all[2].is_usable = false;
  ranks.choose_usable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{1, 2})) << "there are not enough";
}

TEST(NodeRanksTest, KeepsTheOrderOfThePlanAndItsNumbersOfWorkers) {
  NodeRanks ranks(4);
  std::vector<HostStanding> all = usable(5);
  all[3].is_usable = false;
  // Host 1 has no workers, so it becomes a spare. Host 3 did not come up.
  ranks.set_workers({2, 0}, {8, 4}, all);
  EXPECT_EQ(ranks.hosts(), (Hosts{2, 0, 3}));
  EXPECT_EQ(ranks.workers(0), 8);
  EXPECT_EQ(ranks.workers(1), 4);
  EXPECT_FALSE(ranks.workers(2).has_value());
  ranks.replace_unusable(all);
  EXPECT_EQ(ranks.hosts(), (Hosts{2, 0, 1}));
}

TEST(NodeRanksTest, KeepsThePlaceOfALostHost) {
  NodeRanks ranks(3);
  std::vector<HostStanding> all = usable(3);
  all[1].is_usable = false;
  ranks.set_workers({0, 2}, {1, 1}, all);
  EXPECT_EQ(ranks.hosts(), (Hosts{0, 1, 2}));
  EXPECT_FALSE(ranks.workers(1).has_value());
  EXPECT_EQ(ranks.workers(2), 1);
}

TEST(NodeRanksTest, PutsAHostThatJoinsLast) {
  NodeRanks ranks(3);
  ranks.put_last(0);
  EXPECT_EQ(ranks.hosts(), (Hosts{1, 2, 0}));
  ranks.put_last(7);
  EXPECT_EQ(ranks.hosts(), (Hosts{1, 2, 0})) << "it has no node rank";
}

TEST(NodeRanksTest, CountsSharedSwitchesFromTheTop) {
  EXPECT_EQ(shared_switches("", ""), 0u);
  EXPECT_EQ(shared_switches("core1.leaf2", ""), 0u);
  EXPECT_EQ(shared_switches("core1.leaf2", "core1.leaf3"), 1u);
  EXPECT_EQ(shared_switches("core1.leaf2", "core1.leaf2"), 2u);
  EXPECT_EQ(shared_switches("core1.leaf2", "core2.leaf2"), 0u);
}

}  // namespace
}  // namespace ivy
