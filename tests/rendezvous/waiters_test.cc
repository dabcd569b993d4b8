// SPDX-License-Identifier: Apache-2.0
// The index of waiting requests.
#include "rendezvous/engine/waiters.h"

#include <gtest/gtest.h>

namespace ivy::store {
namespace {

const auto kNothingExists = [](const std::string&) { return false; };

Waiter waiter(ClientId client, RequestId request, std::vector<std::string> keys,
              std::uint64_t deadline_ns = kNever) {
  Waiter made;
  made.client = client;
  made.request = request;
  made.keys = std::move(keys);
  made.deadline_ns = deadline_ns;
  return made;
}

TEST(WaitersTest, FindsByKeyClientRequestAndDeadline) {
  Waiters waiters;
  const WaiterId first = waiters.add(waiter(1, 10, {"a", "b"}, 500), kNothingExists);
  const WaiterId second = waiters.add(waiter(2, 10, {"b"}, 400), kNothingExists);
  const WaiterId third = waiters.add(waiter(1, 11, {"c"}), kNothingExists);
  EXPECT_EQ(waiters.missing(Space::kNative, "b"), (std::vector<WaiterId>{first, second}));
  EXPECT_TRUE(waiters.missing(Space::kTorch, "b").empty());
  EXPECT_EQ(waiters.find(2, 10), second);
  EXPECT_EQ(waiters.find(2, 11), 0u);
  EXPECT_EQ(waiters.of_client(1), (std::vector<WaiterId>{first, third}));
  EXPECT_EQ(waiters.count(1), 2u);
  EXPECT_EQ(waiters.next_deadline_ns(), 400u);
  EXPECT_EQ(waiters.due(399), 0u);
  EXPECT_EQ(waiters.due(400), second);
  EXPECT_EQ(waiters.all(), (std::vector<WaiterId>{first, second, third}));
}

TEST(WaitersTest, ListsMissingKeys) {
  Waiters waiters;
  const WaiterId id = waiters.add(waiter(1, 1, {"here", "a", "b", "a"}),
                                  [](const std::string& key) { return key == "here"; });
  EXPECT_TRUE(waiters.missing(Space::kNative, "here").empty());
  EXPECT_FALSE(waiters.found(id, "a"));
  EXPECT_TRUE(waiters.missing(Space::kNative, "a").empty());
  EXPECT_TRUE(waiters.found(id, "b"));
  EXPECT_FALSE(waiters.recheck(id, [](const std::string& key) { return key != "here"; }));
  EXPECT_EQ(waiters.missing(Space::kNative, "here"), (std::vector<WaiterId>{id}));
}

TEST(WaitersTest, LeavesNothingAfterRemoval) {
  Waiters waiters;
  std::vector<WaiterId> ids;
  for (RequestId request = 0; request < 100; ++request) {
    ids.push_back(waiters.add(
        waiter(request % 7, request, {"k" + std::to_string(request % 5), "all"}, request % 3),
        kNothingExists));
  }
  EXPECT_GT(waiters.bytes(), 0u);
  EXPECT_GT(waiters.bytes(3), 0u);
  for (const WaiterId id : ids) waiters.remove(id);
  waiters.remove(ids[0]);
  EXPECT_EQ(waiters.size(), 0u);
  EXPECT_EQ(waiters.bytes(), 0u);
  EXPECT_EQ(waiters.bytes(3), 0u);
  EXPECT_EQ(waiters.next_deadline_ns(), kNever);
  EXPECT_TRUE(waiters.missing(Space::kNative, "all").empty());
  EXPECT_EQ(waiters.count(3), 0u);
}

}  // namespace
}  // namespace ivy::store
