// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator, and the first failure that breaks it, as plain values.
#include "comm/group/core/membership.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/group/core/first_failure.h"

namespace ivy::comm {
namespace {

Member member(std::int32_t world_rank, std::uint32_t host) {
  Member made;
  made.world_rank = world_rank;
  made.pid = 100 + world_rank;
  made.host = host;
  made.host_name = "node" + std::to_string(host);
  made.address = "10.0.0." + std::to_string(host) + ":" + std::to_string(4000 + world_rank);
  return made;
}

// Ranks 0 to 3 of a group, on hosts 7, 3, 7 and 5.
Membership group_of_four(std::int32_t rank) {
  return Membership("world/1", {member(2, 7), member(0, 3), member(5, 7), member(9, 5)}, rank);
}

TEST(MembershipTest, CountsHostsInTheOrderOfTheirFirstRanks) {
  const Membership third = group_of_four(2);
  EXPECT_EQ(third.size(), 4);
  EXPECT_EQ(third.node_count(), 3);
  EXPECT_EQ(third.node_rank(), 0);
  EXPECT_EQ(third.local_ranks(), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(third.local_rank(), 1);
  EXPECT_EQ(third.local_size(), 2);
  const Membership last = group_of_four(3);
  EXPECT_EQ(last.node_rank(), 2);
  EXPECT_EQ(last.local_rank(), 0);
  EXPECT_EQ(last.local_size(), 1);
}

TEST(MembershipTest, TranslatesGroupRanksToWorldRanks) {
  const Membership ranks = group_of_four(0);
  EXPECT_EQ(ranks.world_rank(3), 9);
  EXPECT_EQ(ranks.world_rank(-1), -1);
  EXPECT_EQ(ranks.world_rank(4), -1);
  const std::vector<TcpPeer> peers = ranks.tcp_peers();
  ASSERT_EQ(peers.size(), 4U);
  EXPECT_EQ(peers[1].rank, 1);
  EXPECT_EQ(peers[1].world_rank, 0);
  EXPECT_EQ(peers[1].host, "node3");
  EXPECT_EQ(peers[1].address, "10.0.0.3:4000");
}

TEST(MembershipTest, AddsTheHostOfTheBlamedRank) {
  const Membership ranks = group_of_four(0);
  Failure failure = make_failure(FailureKind::kTimeout, "late");
  failure.rank = 9;
  ranks.add_host(failure);
  EXPECT_STREQ(failure.host, "node5");
  EXPECT_EQ(failure.pid, 109);
  failure.rank = 0;
  ranks.add_host(failure);
  EXPECT_STREQ(failure.host, "node5");
}

TEST(FirstFailureTest, KeepsTheFirstFailureAndAddsTextOnce) {
  FirstFailure failure;
  EXPECT_FALSE(failure.is_set());
  Failure first = make_failure(FailureKind::kMismatch, "first");
  Failure second = make_failure(FailureKind::kAborted, "second");
  EXPECT_TRUE(failure.set(first));
  EXPECT_TRUE(failure.is_set());
  EXPECT_FALSE(failure.set(second));
  EXPECT_STREQ(second.text, "first");
  failure.add_text("and more");
  failure.add_text("and more");
  EXPECT_STREQ(failure.get()->text, "first; and more");
}

}  // namespace
}  // namespace ivy::comm
