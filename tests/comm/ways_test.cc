// SPDX-License-Identifier: Apache-2.0
// The algorithms of all_gather and all_reduce that use the slots, depending on the known caches.
// Ranks are threads.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/transports/shm/shared_layout.h"
#include "comm/transports/shm/shared_segment.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

using Operation = comm_status::Operation;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr Caches kUnknown;
constexpr Caches kNear = {32 * kMiB, 8, true};

// Runs `body` as two members of a host, each a thread.
template <class Body>
void run_members(const Caches& caches, Body body) {
  Result<std::unique_ptr<SharedSegment>> made = SharedSegment::create(2);
  ASSERT_TRUE(made.ok());
  const std::shared_ptr<SharedSegment> segment = std::move(made).value();
  std::vector<std::unique_ptr<SharedGroup>> groups;
  for (std::uint32_t member = 0; member < 2; ++member) {
    SharedGroupOptions options;
    options.communicator = "threads";
    options.host = "here";
    options.members = {{0, 0, 0}, {1, 1, 0}};
    options.self = member;
    options.has_processor_each = false;
    options.selector = std::make_shared<const SharedSelector>(2, caches);
    groups.push_back(std::make_unique<SharedGroup>(segment, std::move(options), nullptr));
  }
  std::thread other([&] { body(*groups[1]); });
  body(*groups[0]);
  other.join();
}

// Returns the number of chunks of the slots that an all_gather of such blocks uses.
std::uint64_t chunks_of_all_gather(const Caches& caches, std::size_t bytes) {
  std::uint64_t chunks = 0;
  run_members(caches, [&](SharedGroup& group) {
    Deadline deadline(ivy::test::scaled_time(seconds(60)));
    OperationShape shape;
    shape.operation = Operation::kAllGather;
    shape.count = bytes;
    std::vector<std::uint8_t> send(bytes);
    std::iota(send.begin(), send.end(), static_cast<std::uint8_t>(group.self() * 91));
    std::vector<std::uint8_t> all(2 * bytes);
    const Blocks blocks = Blocks::even(2, bytes);
    ASSERT_TRUE(shared_all_gather(&group, OperationCall{shape, 1, deadline}, send.data(),
                                  {all.data(), 0, blocks}));
    for (std::size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(all[i], static_cast<std::uint8_t>(i)) << i;
      ASSERT_EQ(all[bytes + i], static_cast<std::uint8_t>(i + 91)) << i;
    }
    if (group.self() == 0) chunks = group.slots().take(0);
  });
  return chunks;
}

TEST(WaysTest, AllGatherUsesTheSlotsIfTheKernelIsSlower) {
  EXPECT_EQ(chunks_of_all_gather(kUnknown, kEagerBytes / 2), 0U);
  EXPECT_EQ(chunks_of_all_gather(kUnknown, kEagerBytes / 2 + 1), 1U);
  EXPECT_EQ(chunks_of_all_gather(kUnknown, kMiB), 0U);  // Copied by the kernel.
  EXPECT_EQ(chunks_of_all_gather(kNear, kMiB), 4U);
}

// Returns the number of chunks that member 0 fills in an all_reduce that is in place on these
// members.
std::uint64_t chunks_filled_by_all_reduce(const Caches& caches, std::size_t bytes,
                                          std::uint32_t in_place_on) {
  std::uint64_t chunks = 0;
  run_members(caches, [&](SharedGroup& group) {
    Deadline deadline(ivy::test::scaled_time(seconds(60)));
    const std::size_t count = bytes / 4;
    OperationShape shape;
    shape.operation = Operation::kAllReduce;
    shape.count = count;
    ReduceRule rule;
    rule.dtype = Dtype::kU32;
    std::vector<std::uint32_t> send(count);
    std::iota(send.begin(), send.end(), group.self() * 977);
    std::vector<std::uint32_t> other(count);
    std::vector<std::uint32_t>& receive = (in_place_on >> group.self() & 1) != 0 ? send : other;
    ASSERT_TRUE(shared_all_reduce(&group, OperationCall{shape, 1, deadline},
                                  {rule, send.data(), receive.data(), count}));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(receive[i], 2 * i + 977) << i;
    if (group.self() == 0) chunks = group.slots().filled();
  });
  return chunks;
}

TEST(WaysTest, AllReduceUsesTheKernelOnlyIfAllMembersReduceInPlace) {
  constexpr std::uint32_t kBoth = 3;
  EXPECT_EQ(chunks_filled_by_all_reduce(kUnknown, 4 * kMiB - 64, kBoth), 16U);
  for (const std::size_t bytes : {4 * kMiB, 4 * kMiB + 4, 5 * kMiB + 68, 32 * kMiB}) {
    EXPECT_EQ(chunks_filled_by_all_reduce(kUnknown, bytes, kBoth), 0U) << bytes;
  }
  EXPECT_EQ(chunks_filled_by_all_reduce(kUnknown, 32 * kMiB + 4, kBoth), 129U);
  for (const std::uint32_t in_place_on : {0U, 1U, 2U}) {
    EXPECT_EQ(chunks_filled_by_all_reduce(kUnknown, 8 * kMiB, in_place_on), 32U) << in_place_on;
  }
  EXPECT_EQ(chunks_filled_by_all_reduce(kNear, 8 * kMiB, kBoth), 32U);
}

}  // namespace
}  // namespace ivy::comm::test
