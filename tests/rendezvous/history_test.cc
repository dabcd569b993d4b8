// SPDX-License-Identifier: Apache-2.0
// Tests the checker itself: it rejects histories that no store can produce.
#include "tests/rendezvous/history.h"

#include <gtest/gtest.h>

namespace ivy::test {
namespace {

Operation answered(Kind kind, std::uint64_t invoked, std::uint64_t returned) {
  Operation operation;
  operation.kind = kind;
  operation.keys = {0};
  operation.invoked = invoked;
  operation.returned = returned;
  operation.end = Operation::End::kAnswered;
  return operation;
}
Operation set(const std::string& value, std::uint64_t invoked, std::uint64_t returned) {
  Operation operation = answered(Kind::kSet, invoked, returned);
  operation.value = value;
  return operation;
}
Operation get(const std::string& value, std::uint64_t invoked, std::uint64_t returned) {
  Operation operation = answered(Kind::kGet, invoked, returned);
  operation.got = value;
  return operation;
}
Operation add(std::int64_t sum, std::uint64_t invoked, std::uint64_t returned) {
  Operation operation = answered(Kind::kAdd, invoked, returned);
  operation.delta = 1;
  operation.number = sum;
  return operation;
}
Operation pop(const std::string& value, std::uint64_t invoked, std::uint64_t returned) {
  Operation operation = answered(Kind::kPop, invoked, returned);
  operation.got = value;
  return operation;
}

TEST(HistoryTest, AcceptsLinearizableHistories) {
  EXPECT_TRUE(is_linearizable({set("1", 0, 10), get("1", 5, 6), get("1", 20, 21)}));
  EXPECT_TRUE(is_linearizable({set("1", 0, 10), set("2", 0, 10), get("2", 11, 12)}));
  EXPECT_TRUE(is_linearizable({add(2, 0, 10), add(1, 0, 10), get("2", 11, 12)}));
}

TEST(HistoryTest, RejectsAStaleRead) {
  EXPECT_FALSE(is_linearizable({set("1", 0, 1), set("2", 2, 3), get("1", 4, 5)}));
  EXPECT_FALSE(is_linearizable({get("1", 0, 1), set("1", 2, 3)}));
}

TEST(HistoryTest, RejectsALostUpdate) {
  EXPECT_FALSE(is_linearizable({add(1, 0, 10), add(1, 0, 10)}));
}

TEST(HistoryTest, RejectsReadsThatGoBack) {
  EXPECT_FALSE(is_linearizable({set("1", 0, 1), set("2", 2, 20), get("2", 3, 4), get("1", 5, 6)}));
}

TEST(HistoryTest, RejectsAnItemTakenTwice) {
  Operation push = answered(Kind::kPush, 0, 1);
  push.value = "a";
  push.number = 1;
  EXPECT_TRUE(is_linearizable({push, pop("a", 2, 3)}));
  EXPECT_FALSE(is_linearizable({push, pop("a", 2, 3), pop("a", 4, 5)}));
}

TEST(HistoryTest, AllowsUnansweredRequestsWithAnyEffect) {
  Operation lost = set("1", 0, kOpen);
  lost.end = Operation::End::kUnknown;
  Operation missing = answered(Kind::kGet, 10, 11);
  missing.missing = true;
  EXPECT_TRUE(is_linearizable({lost, get("1", 10, 11)}));
  EXPECT_TRUE(is_linearizable({lost, missing}));
  EXPECT_FALSE(is_linearizable({lost, get("1", 10, 11), [&] {
                                  Operation later = missing;
                                  later.invoked = 12;
                                  later.returned = 13;
                                  return later;
                                }()}));
}

TEST(HistoryTest, RejectsHalfOfAMultiSet) {
  Operation both = answered(Kind::kMultiSet, 0, 10);
  both.keys = {0, 1};
  both.value = "v";
  Operation first = get("v.0", 1, 2);
  Operation second = answered(Kind::kGet, 3, 4);
  second.keys = {1};
  second.missing = true;
  EXPECT_FALSE(is_linearizable({both, first, second}));
}

}  // namespace
}  // namespace ivy::test
