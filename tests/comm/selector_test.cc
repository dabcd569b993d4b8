// SPDX-License-Identifier: Apache-2.0
// The choice of algorithms by operation, size, number of ranks and caches.
#include "comm/collectives/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "comm/transports/shm/shared_layout.h"

namespace ivy::comm {
namespace {

using Operation = comm_status::Operation;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// Returns every size at which the choice could change for any number of members, and its
// neighbours.
std::set<std::size_t> grid(std::size_t members) {
  std::set<std::size_t> sizes;
  for (std::size_t size = 1; size <= 512 * kMiB; size *= 2) {
    for (const std::size_t base : {size, size / members, size + size / 2, size / 3}) {
      for (const std::size_t near : {base - 1, base, base + 1}) {
        if (near <= 512 * kMiB) sizes.insert(near);
      }
    }
  }
  for (std::size_t size = 0; size <= 20'000; size += 7) sizes.insert(size);
  return sizes;
}

std::vector<std::uint32_t> member_counts() {
  std::vector<std::uint32_t> counts;
  for (std::uint32_t count = 2; count <= 40; ++count) counts.push_back(count);
  counts.insert(counts.end(), {64, 100, 127, 128, 1023, kMembersMax});
  return counts;
}

SharedAlgorithm by(bool is_eager, bool is_kernel = false) {
  if (is_eager) return SharedAlgorithm::kEager;
  return is_kernel ? SharedAlgorithm::kKernel : SharedAlgorithm::kSlots;
}

// Returns the longest block of an all_gather that the kernel copies.
std::size_t max_gathered(std::uint32_t members) { return (members == 2 ? 16 : 4) * kMiB; }

// The limits as conditions, if the machine's caches are unknown.
TEST(SelectorTest, UsesTheBuiltInTable) {
  for (const std::uint32_t members : member_counts()) {
    const SharedSelector shm(members);
    const std::size_t one_shot =
        std::max<std::size_t>(1024, kEagerBytes / std::max<std::uint32_t>(1, members / 2));
    for (const std::size_t bytes : grid(members)) {
      SCOPED_TRACE(std::to_string(members) + " members, " + std::to_string(bytes) + " bytes");
      const bool is_eager = bytes <= kEagerBytes;
      ASSERT_EQ(shm.algorithm(Operation::kAllReduce, bytes),
                by(bytes <= one_shot, members == 2 && bytes >= 4 * kMiB && bytes <= 32 * kMiB));
      ASSERT_EQ(shm.algorithm(Operation::kReduce, bytes), by(bytes <= one_shot));
      for (const Operation operation : {Operation::kReduceScatter, Operation::kBroadcast,
                                        Operation::kGather, Operation::kScan}) {
        ASSERT_EQ(shm.algorithm(operation, bytes), by(is_eager));
      }
      ASSERT_EQ(shm.algorithm(Operation::kAllGather, bytes),
                by(bytes <= 8 * kKiB, bytes >= 64 * kKiB && bytes <= max_gathered(members)));
      ASSERT_EQ(shm.algorithm(Operation::kAllToAll, bytes),
                by(bytes * members <= kEagerBytes, bytes >= 64 * kKiB && bytes <= 16 * kMiB));
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce, Operation::kReduceScatter,
            Operation::kBroadcast, Operation::kAllGather, Operation::kGather, Operation::kScatter,
            Operation::kAllToAll}) {
        ASSERT_EQ(shm.stores(operation, bytes),
                  bytes >= 4 * kMiB ? Stores::kStreaming : Stores::kCached);
      }
    }
    EXPECT_EQ(max_whole_bytes(members, false), 32 * kKiB);
    EXPECT_EQ(max_whole_bytes(members, true), (members == 2 ? 256 : 32) * kKiB);
  }
}

// Sizes from which results bypass the caches, depending on the known caches.
struct PastCaches {
  Caches caches;
  std::uint32_t members;
  std::size_t broadcast;  // Also gather and scatter.
  std::size_t all_gather;
  std::size_t all_to_all;
  std::size_t all_reduce;  // Also reduce.
  std::size_t reduce_scatter;
};

constexpr PastCaches kPastCaches[] = {
    // Unknown caches.
    {{}, 2, 4 * kMiB, 4 * kMiB, 4 * kMiB, 4 * kMiB, 4 * kMiB},
    // Three quarters of 32 MiB are 24: the buffers of two ranks are 2, 3, 4, 4 and 6 times the
    // result.
    {{32 * kMiB, 2, true}, 2, 12 * kMiB, 8 * kMiB, 6 * kMiB, 6 * kMiB, 4 * kMiB},
    {{32 * kMiB, 8, true}, 4, 6 * kMiB, 24 * kMiB / 5, 3 * kMiB, 3 * kMiB, 24 * kMiB / 20},
    // Four ranks with two last-level caches.
    {{32 * kMiB, 2, true}, 4, 12 * kMiB, 48 * kMiB / 5, 6 * kMiB, 6 * kMiB, 48 * kMiB / 20},
    // Four ranks that share two processors.
    {{32 * kMiB, 2, true, 2}, 4, 6 * kMiB, 24 * kMiB / 5, 3 * kMiB, 3 * kMiB, 24 * kMiB / 20},
    // At least 1 MiB, at most 16.
    {{32 * kMiB, 64, true}, 64, kMiB, kMiB, kMiB, kMiB, kMiB},
    {{384 * kMiB, 2, true}, 2, 16 * kMiB, 16 * kMiB, 16 * kMiB, 16 * kMiB, 16 * kMiB},
    // Reductions between distant cores.
    {{128 * kMiB, 2, false}, 2, 16 * kMiB, 16 * kMiB, 16 * kMiB, 4 * kMiB, 16 * kMiB},
    {{16 * kMiB, 4, false}, 4, 3 * kMiB, 12 * kMiB / 5, 12 * kMiB / 8, 12 * kMiB / 8, kMiB},
};

TEST(SelectorTest, ResultsBypassFullCaches) {
  for (const PastCaches& one : kPastCaches) {
    SCOPED_TRACE(caches_text(one.caches) + ", " + std::to_string(one.members) + " members");
    const SharedSelector selector(one.members, one.caches);
    const auto expect_from = [&](Operation operation, std::size_t from) {
      EXPECT_EQ(selector.stores(operation, from - 1), Stores::kCached) << name_of(operation);
      EXPECT_EQ(selector.stores(operation, from), Stores::kStreaming) << name_of(operation);
    };
    expect_from(Operation::kBroadcast, one.broadcast);
    expect_from(Operation::kGather, one.broadcast);
    expect_from(Operation::kScatter, one.broadcast);
    expect_from(Operation::kAllGather, one.all_gather);
    expect_from(Operation::kAllToAll, one.all_to_all);
    expect_from(Operation::kAllReduce, one.all_reduce);
    expect_from(Operation::kReduce, one.all_reduce);
    expect_from(Operation::kReduceScatter, one.reduce_scatter);
  }
}

// Between near cores, two copies are faster than one copy by the kernel at every size.
TEST(SelectorTest, UsesKernelCopiesOnlyBetweenDistantCores) {
  for (const std::uint32_t members : member_counts()) {
    const SharedSelector near(members, {32 * kMiB, 8, true});
    for (const std::size_t bytes : grid(members)) {
      SCOPED_TRACE(std::to_string(members) + " members, " + std::to_string(bytes) + " bytes");
      ASSERT_EQ(near.algorithm(Operation::kAllGather, bytes), by(bytes <= 8 * kKiB));
      ASSERT_NE(near.algorithm(Operation::kAllReduce, bytes), SharedAlgorithm::kKernel);
      ASSERT_EQ(near.algorithm(Operation::kAllToAll, bytes), by(bytes * members <= kEagerBytes));
    }
    // The range of sizes depends on the cost of a system call and on measurements, not on caches.
    for (const Caches& caches : {Caches{2 * kMiB, 1, false}, Caches{32 * kMiB, 8, false},
                                 Caches{260 * kMiB, 2, false, 2}}) {
      const SharedSelector far(members, caches);
      for (const std::size_t bytes : grid(members)) {
        SCOPED_TRACE(caches_text(caches) + ", " + std::to_string(members) + " members, " +
                     std::to_string(bytes) + " bytes");
        ASSERT_EQ(far.algorithm(Operation::kAllGather, bytes),
                  by(bytes <= 8 * kKiB, bytes >= 64 * kKiB && bytes <= max_gathered(members)));
        ASSERT_EQ(far.algorithm(Operation::kAllToAll, bytes),
                  by(bytes * members <= kEagerBytes, bytes >= 64 * kKiB && bytes <= 16 * kMiB));
      }
    }
  }
}

TEST(SelectorTest, ChoosesOnlyAlgorithmsThatFitIntoMemory) {
  for (const Caches& caches : {Caches{}, Caches{32 * kMiB, 8, true}, Caches{2 * kMiB, 1, false}}) {
    for (const std::uint32_t members : member_counts()) {
      const SharedSelector shm(members, caches);
      for (const std::size_t bytes : grid(members)) {
        SCOPED_TRACE(std::to_string(members) + " members, " + std::to_string(bytes) + " bytes");
        for (const Operation operation :
             {Operation::kAllReduce, Operation::kReduce, Operation::kReduceScatter,
              Operation::kBroadcast, Operation::kAllGather, Operation::kGather, Operation::kScan}) {
          ASSERT_TRUE(bytes <= kEagerBytes ||
                      shm.algorithm(operation, bytes) != SharedAlgorithm::kEager);
        }
        ASSERT_TRUE(bytes * members <= kEagerBytes ||
                    shm.algorithm(Operation::kAllToAll, bytes) != SharedAlgorithm::kEager);
      }
    }
  }
}

}  // namespace
}  // namespace ivy::comm
