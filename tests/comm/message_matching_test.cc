// SPDX-License-Identifier: Apache-2.0
// Matches messages to receives, without connections.
#include "comm/group/p2p/message_matching.h"

#include <gtest/gtest.h>

namespace ivy::comm {
namespace {

std::shared_ptr<MessageRequest> receive_from(std::int32_t peer, std::int32_t tag) {
  auto request = std::make_shared<MessageRequest>();
  request->peer = peer;
  request->tag = tag;
  return request;
}

TEST(MessageMatchingTest, GivesAMessageToTheFirstMatchingReceive) {
  MessageMatching matching;
  const auto other_tag = receive_from(1, 8);
  const auto anyone = receive_from(kAnySource, 7);
  const auto exact = receive_from(1, 7);
  for (const auto& receive : {other_tag, anyone, exact}) matching.post(receive);
  EXPECT_EQ(matching.take_receive(1, 7), anyone);
  EXPECT_EQ(matching.take_receive(1, 7), exact);
  EXPECT_EQ(matching.take_receive(1, 7), nullptr);
  EXPECT_EQ(matching.oldest_receive(), other_tag.get());
}

TEST(MessageMatchingTest, KeepsUnexpectedMessagesInOrder) {
  MessageMatching matching;
  const auto first = matching.keep({2, 5, 4}, Dtype::kU8);
  const auto second = matching.keep({2, 5, 4}, Dtype::kU8);
  first->data = {1, 2, 3, 4};
  const auto receive = receive_from(2, kAnyTag);
  std::uint8_t taken[4] = {};
  receive->data = taken;
  ASSERT_EQ(matching.find(*receive), first);
  matching.deliver(first, *receive);
  EXPECT_EQ(taken[3], 4);
  EXPECT_EQ(receive->status.tag, 5);
  EXPECT_EQ(matching.find(*receive), second);
}

TEST(MessageMatchingTest, DoesNotFindAClaimedMessageAgain) {
  MessageMatching matching;
  const auto arriving = matching.keep({2, 5, 4}, Dtype::kU8);
  arriving->claimant = receive_from(2, 5);
  EXPECT_EQ(matching.find(*receive_from(2, 5)), nullptr);
  EXPECT_EQ(matching.take_all_receives(), std::vector{arriving->claimant});
}

TEST(MessageMatchingTest, LimitsUnexpectedMessagesExceptItsOwn) {
  MessageMatching matching;
  EXPECT_EQ(matching.keep({1, 0, kUnexpectedBytesMax + 1}, Dtype::kU8), nullptr);
  const auto kept = matching.keep({1, 0, 1 << 20}, Dtype::kU8);
  EXPECT_EQ(matching.keep({1, 0, kUnexpectedBytesMax}, Dtype::kU8), nullptr);
  EXPECT_NE(matching.keep_own({0, 0, 1}, Dtype::kU8), nullptr);
  const auto receive = receive_from(1, 0);
  std::vector<std::uint8_t> room(1 << 20);
  receive->data = room.data();
  matching.deliver(kept, *receive);
  EXPECT_NE(matching.keep({1, 0, 8}, Dtype::kU8), nullptr);
}

TEST(MessageMatchingTest, DistinguishesReceivesFromAnyRank) {
  MessageMatching matching;
  EXPECT_EQ(matching.receive_from_any(), nullptr);
  const auto anyone = receive_from(kAnySource, 1);
  matching.post(anyone);
  EXPECT_TRUE(matching.is_wanted(3, true));
  EXPECT_FALSE(matching.is_wanted(3, false));
  EXPECT_EQ(matching.receive_from_any(), anyone.get());
}

}  // namespace
}  // namespace ivy::comm
