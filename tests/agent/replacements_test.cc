// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/replacements.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

const auto kOver = [](std::uint32_t) { return true; };
const auto kNotOver = [](std::uint32_t) { return false; };

TEST(ReplacementsTest, ReservesNothingIfTheHostDoesNotWait) {
  Replacements places;
  places.begin(false);
  places.failed(1);
  EXPECT_FALSE(places.awaits());
  EXPECT_FALSE(places.order({1, 1, 0}));
}

TEST(ReplacementsTest, ReservesTheSlotOfAFailedRankUntilItStarts) {
  Replacements places;
  places.begin(true);
  places.failed(1);
  EXPECT_TRUE(places.awaits());
  EXPECT_TRUE(places.take_due(100, kOver).empty()) << "nothing is ordered yet";
  ASSERT_TRUE(places.order({1, 1, 50}));
  EXPECT_EQ(places.next_due_ns(), 50u);
  EXPECT_TRUE(places.take_due(49, kOver).empty());
  EXPECT_TRUE(places.take_due(50, kNotOver).empty()) << "its output has not ended";
  const auto due = places.take_due(50, kOver);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].rank, 1u);
  EXPECT_EQ(due[0].rejoins, 1u);
  EXPECT_FALSE(places.awaits());
  EXPECT_EQ(places.next_due_ns(), std::nullopt);
}

TEST(ReplacementsTest, RejectsARepeatedOrderOnce) {
  Replacements places;
  places.begin(true);
  EXPECT_FALSE(places.order({1, 1, 0})) << "it has not failed";
  places.failed(1);
  EXPECT_TRUE(places.order({1, 1, 0}));
  EXPECT_FALSE(places.order({1, 2, 0}));
}

TEST(ReplacementsTest, DoesNotWaitForAnAbandonedRank) {
  Replacements places;
  places.begin(true);
  places.failed(1);
  places.abandon(1);
  EXPECT_FALSE(places.awaits());
}

TEST(ReplacementsTest, AnswersPendingOrdersOnAStop) {
  Replacements places;
  places.begin(true);
  places.failed(1);
  places.failed(2);
  ASSERT_TRUE(places.order({2, 1, 1'000}));
  EXPECT_EQ(places.give_up(), (std::vector<std::uint32_t>{2}));
  EXPECT_FALSE(places.awaits());
  places.failed(3);
  EXPECT_FALSE(places.awaits()) << "a stop is in progress";
}

}  // namespace
}  // namespace ivy
