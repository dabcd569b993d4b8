// SPDX-License-Identifier: Apache-2.0
// The commands by which `ivy-node drill` faults a host's network.
#include <gtest/gtest.h>

#include "agent/node/roles/drill.h"
#include "proto/contract/text.h"

namespace ivy::drill {
namespace {

TEST(DrillCommands, CutsBothDirectionsInFrontOfAllRules) {
  const std::vector<Words> rules = cut_rules("iptables", "-I", "2026-11-30T19:00:00", "mark");
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(joined(rules[0], " "),
            "iptables -w 5 -I INPUT 1 ! -i lo -m comment --comment mark -m time --datestop "
            "2026-11-30T19:00:00 -j DROP");
  EXPECT_EQ(joined(rules[1], " "),
            "iptables -w 5 -I OUTPUT 1 ! -o lo -m comment --comment mark -m time --datestop "
            "2026-11-30T19:00:00 -j DROP");
}

TEST(DrillCommands, RemovesTheRulesThatItInserted) {
  EXPECT_EQ(joined(cut_rules("iptables", "-D", "", "mark")[0], " "),
            "iptables -w 5 -D INPUT ! -i lo -m comment --comment mark -j DROP");
}

TEST(DrillCommands, LimitsARateWithABucketForOneTick) {
  EXPECT_EQ(joined(slow_command("tc", "eth0", "10mbit", 0), " "),
            "tc qdisc add dev eth0 root tbf rate 10mbit burst 32768 latency 400ms");
  EXPECT_EQ(joined(slow_command("tc", "eth0", "10gbit", 0), " "),
            "tc qdisc add dev eth0 root tbf rate 10gbit burst 12500000 latency 400ms");
}

TEST(DrillCommands, DelaysWithNetem) {
  EXPECT_EQ(joined(slow_command("tc", "eth0", "10mbit", 50), " "),
            "tc qdisc add dev eth0 root netem delay 50ms rate 10mbit");
}

}  // namespace
}  // namespace ivy::drill
