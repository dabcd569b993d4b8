// SPDX-License-Identifier: Apache-2.0
// Groups that are made only by their members, with missing members.
#include <cstdint>
#include <string>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// Ranks 0, 1 and 2 of two hosts make a group, but rank `missing` does not call. Expects this error
// on each of the others.
void expect_missing(int missing, const std::string& expected) {
  const auto ends = run_world({1, 2}, [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank != missing) {
      const std::int32_t ranks[] = {0, 1, 2};
      const ivy_members members = {sizeof members, "late", ranks,
                                   scaled_time(milliseconds(500)).count(), 3};
      ivy_comm* group = nullptr;
      EXPECT_EQ(ivy_comm_group_of_members(world, &members, &group), IVY_DEADLINE_EXCEEDED);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  });
  expect_ok(ends);
}

// Rank 2 waits for rank 1, which creates the memory of their host, and is not missing itself.
TEST(GroupRendezvous, DoesNotNameRanksThatWaitForTheMissingOne) {
  expect_missing(1, ": world ranks 1 did not arrive");
}

TEST(GroupRendezvous, NamesAMissingRankThatOpensMemory) {
  expect_missing(2, ": world ranks 2 did not arrive");
}

TEST(GroupRendezvous, NamesItsFirstRankIfThatDoesNotRespond) {
  expect_missing(0, ": world rank 0, its first rank, did not respond");
}

}  // namespace
}  // namespace ivy::comm::test
