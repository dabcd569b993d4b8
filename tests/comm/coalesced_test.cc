// SPDX-License-Identifier: Apache-2.0
// Several all_reduces as one operation: the plan of its parts, their results, errors on every rank
// if parts differ, and memory use.
#include "comm/collectives/coalesced.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// ---- The plan ----------------------------------------------------------------------------------

std::vector<PartSizes> all_sizes() {
  return {part_sizes(false, true), part_sizes(false, false), part_sizes(true, true)};
}

constexpr PartSizes kSizes = {100, 300};

std::vector<PartStep> plan(const std::vector<std::size_t>& counts) {
  return plan_parts(counts, 4, kSizes);
}

TEST(PartsPlanTest, SendsASinglePartUnpacked) {
  EXPECT_EQ(plan({7}), (std::vector<PartStep>{{0, 1, 7, false}}));
  EXPECT_EQ(plan({0, 7, 0}), (std::vector<PartStep>{{1, 2, 7, false}}));
}

TEST(PartsPlanTest, PlansOneStepForNoElements) {
  EXPECT_EQ(plan({}), (std::vector<PartStep>{{0, 0, 0, false}}));
  EXPECT_EQ(plan({0, 0}), (std::vector<PartStep>{{0, 0, 0, false}}));
}

TEST(PartsPlanTest, SendsLongPartsUnpackedAndPacksShortOnes) {
  // 25 elements are 100 bytes.
  EXPECT_EQ(plan({24, 25, 0, 24, 1000, 24}),
            (std::vector<PartStep>{{1, 2, 25, false}, {4, 5, 1000, false}, {0, 6, 72, true}}));
}

TEST(PartsPlanTest, LimitsTheBytesOfAPackedStep) {
  const std::vector<std::size_t> counts(10, 24);  // 96 bytes each: three make 288.
  EXPECT_EQ(plan(counts),
            (std::vector<PartStep>{
                {0, 3, 72, true}, {3, 6, 72, true}, {6, 9, 72, true}, {9, 10, 24, false}}));
}

// For any sizes, every non-empty part is in exactly one step, and no packed step is too long.
TEST(PartsPlanTest, PutsEveryElementIntoOneStep) {
  std::uint32_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(round % 23));
    for (std::size_t& count : counts) count = (random = random * 1'664'525 + 1'013'904'223) >> 26;
    std::vector<int> times(counts.size(), 0);
    for (const PartStep& step : plan(counts)) {
      std::size_t sum = 0;
      for (std::size_t part = step.first; part < step.end; ++part) {
        if (step.is_packed && !is_packed(counts[part], 4, kSizes)) continue;
        ++times[part];
        sum += counts[part];
      }
      ASSERT_EQ(sum, step.count);
      ASSERT_TRUE(!step.is_packed || sum * 4 <= kSizes.max_packed_bytes);
    }
    for (std::size_t part = 0; part < counts.size(); ++part) {
      ASSERT_EQ(times[part], counts[part] > 0 ? 1 : 0) << part;
    }
  }
}

TEST(PartsPlanTest, FitsPackedPartsIntoTheScratch) {
  for (const PartSizes& sizes : all_sizes())
    EXPECT_GE(sizes.max_packed_bytes, sizes.max_coalesced_bytes);
}

// ---- Worlds ------------------------------------------------------------------------------------

std::uint32_t mix(std::size_t part, std::size_t i) {
  return static_cast<std::uint32_t>(part * 2'654'435'761U + i * 40'503U);
}

// The parts of one rank, with guards between them.
struct Parts {
  Parts(const std::vector<std::size_t>& all, int rank, bool in_place) : counts(all) {
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    given.assign(total + counts.size() + 1, kGuard);
    if (!in_place) taken.assign(given.size(), kGuard);
    std::size_t next = 1;
    for (std::size_t part = 0; part < counts.size(); ++part) {
      for (std::size_t i = 0; i < counts[part]; ++i) {
        given[next + i] = mix(part, i) + static_cast<std::uint32_t>(rank);
      }
      send.push_back(in_place ? IVY_IN_PLACE : &given[next]);
      receive.push_back(in_place ? &given[next] : &taken[next]);
      next += counts[part] + 1;
    }
  }

  int reduce(ivy_comm* comm, const ivy_call* call = nullptr) {
    return ivy_all_reduce_coalesced(comm, counts.size(), send.data(), receive.data(), counts.data(),
                                    IVY_U32, IVY_SUM, call);
  }

  // Returns a description of the first wrong element, or an empty string.
  std::string wrong(int ranks) const {
    const std::vector<std::uint32_t>& result = taken.empty() ? given : taken;
    const auto size = static_cast<std::uint32_t>(ranks);
    std::size_t next = 1;
    for (std::size_t part = 0; part < counts.size(); ++part) {
      if (result[next - 1] != kGuard) return "before part " + std::to_string(part);
      for (std::size_t i = 0; i < counts[part]; ++i) {
        if (result[next + i] == size * mix(part, i) + size * (size - 1) / 2) continue;
        return "part " + std::to_string(part) + ", element " + std::to_string(i);
      }
      next += counts[part] + 1;
    }
    return result[next - 1] != kGuard ? "after the last part" : "";
  }

  static constexpr std::uint32_t kGuard = 0xdeadbeef;
  std::vector<std::size_t> counts;
  std::vector<std::uint32_t> given;
  std::vector<std::uint32_t> taken;  // Empty if in place.
  std::vector<const void*> send;
  std::vector<void*> receive;
};

// Sizes on both sides of every size at which the algorithm changes.
std::vector<std::vector<std::size_t>> mixes() {
  std::vector<std::vector<std::size_t>> all = {{}, {0, 0}, {5}, {0, 5, 0}, {1, 2, 3}};
  for (const PartSizes& sizes : all_sizes()) {
    const std::size_t alone = sizes.max_coalesced_bytes / 4;
    all.push_back({alone - 1, alone, alone + 1});
    all.push_back({3, alone * 3 + 7, 5, 0, alone + 1, alone - 1, 2});
    all.push_back(std::vector<std::size_t>(
        2 * sizes.max_packed_bytes / sizes.max_coalesced_bytes + 3, alone - 1));
  }
  all.push_back(std::vector<std::size_t>(300, 17));
  return all;
}

class CoalescedTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CoalescedTest,
                         ::testing::Values(one_host(1), one_host(2), one_host(3), host_each(2),
                                           Hosts{2, 1}),
                         [](const ::testing::TestParamInfo<Hosts>& world) {
                           return hosts_text(world.param);
                         });

TEST_P(CoalescedTest, ReducesEveryMixOfSizes) {
  const int ranks = rank_count(GetParam());
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    for (const std::vector<std::size_t>& counts : mixes()) {
      for (const bool in_place : {false, true}) {
        Parts parts(counts, rank, in_place);
        ASSERT_EQ(parts.reduce(world), IVY_OK) << ivy_last_error();
        ASSERT_EQ(parts.wrong(ranks), "") << counts.size() << " parts, in place " << in_place;
      }
    }
  }));
}

// Also if a part is sent alone on one rank and packed on another, and if only the order differs.
TEST_P(CoalescedTest, ReportsDifferentPartsOnEveryRank) {
  if (rank_count(GetParam()) == 1) return;
  const std::size_t alone = part_sizes(GetParam().size() > 1, true).max_coalesced_bytes / 4;
  const std::vector<std::vector<std::size_t>> pairs[] = {
      {{alone, alone}, {2 * alone}},
      {{alone, 10}, {10, alone}},
      {{alone + 1, alone - 1}, {alone, alone}},
      {{4, 4, 4}, {6, 6}},
      {{4 * alone, 4}, {4, 4 * alone}},
  };
  for (const auto& pair : pairs) {
    const int last = rank_count(GetParam()) - 1;
    expect_ok(run_world(GetParam(), [&](int rank) {
      const World world(seconds(20));
      ASSERT_TRUE(world);
      Parts before({alone, 3, 4}, rank, false);
      ASSERT_EQ(before.reduce(world), IVY_OK) << ivy_last_error();
      Parts parts(pair[rank == last ? 1 : 0], rank, true);
      EXPECT_EQ(parts.reduce(world), IVY_ABORTED) << ivy_last_error();
      EXPECT_EQ(last_failure().kind, IVY_FAILURE_MISMATCH) << ivy_last_error();
    }));
  }
}

std::size_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6)) * kKiB;
  }
  return 0;
}

long faults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKnowsItsMemory = false;
#else
constexpr bool kKnowsItsMemory = true;
#endif

// With sizes like those of gradients, it allocates neither as much memory as all parts together nor
// new memory in every call.
TEST(CoalescedMemoryTest, BoundsAndReusesItsMemory) {
  if (!kKnowsItsMemory) GTEST_SKIP() << "a sanitizer's shadow is memory too";
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    std::vector<std::size_t> counts(16, kMiB);  // 64 MiB.
    counts.resize(counts.size() + 500, 2 * kKiB);
    Parts parts(counts, rank, true);
    Parts plain({2 * kMiB}, rank, true);
    ASSERT_EQ(plain.reduce(world), IVY_OK) << ivy_last_error();  // Creates the slots.
    const std::size_t before = peak_bytes();
    ASSERT_EQ(parts.reduce(world), IVY_OK) << ivy_last_error();
    EXPECT_LT(peak_bytes() - before, 16 * kMiB);
    const long before_second = faults();
    ASSERT_EQ(parts.reduce(world), IVY_OK) << ivy_last_error();
    EXPECT_LT(faults() - before_second, 100);
  }));
}

// If no more memory can be registered, it still packs the parts.
TEST(CoalescedMemoryTest, PacksIntoUnregisteredScratch) {
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 1) {
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 3;
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    for (int round = 0; round < 2; ++round) {
      Parts parts(std::vector<std::size_t>(300, 1000), rank, false);
      ASSERT_EQ(parts.reduce(world), IVY_OK) << ivy_last_error();
      ASSERT_EQ(parts.wrong(2), "");
    }
  }));
}

// The survivors of a rank that dies during the operation get an error, and a group without that
// rank continues.
TEST(CoalescedEndsTest, KeepsOtherCommunicatorsWorkingAfterADeath) {
  Shared<std::atomic<int>> reduced;
  const auto body = [&](int rank) {
    const World world(seconds(20));
    ASSERT_TRUE(world);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank == 2 ? 1 : 0, 0, &group), IVY_OK) << ivy_last_error();
    // Large enough that a death most likely falls between steps of both kinds.
    std::vector<std::size_t> counts(60, 64 * kKiB);
    counts.resize(600, 1000);
    Parts parts(counts, rank, true);
    int code = IVY_OK;
    while (code == IVY_OK) {
      code = parts.reduce(world);
      if (code == IVY_OK && rank == 2 && ++*reduced == 1) ualarm(50'000, 0);
    }
    EXPECT_EQ(code, IVY_UNAVAILABLE) << ivy_last_error();
    EXPECT_EQ(last_failure().rank, 2);
    for (int round = 0; round < 3; ++round) {
      Parts again(counts, rank, round % 2 == 0);
      EXPECT_EQ(again.reduce(group), IVY_OK) << ivy_last_error();
      EXPECT_EQ(again.wrong(2), "");
    }
    EXPECT_EQ(ivy_comm_free(group), IVY_OK) << ivy_last_error();
  };
  expect_ok(run_world(one_host(3), body), 2);
  EXPECT_GT(*reduced, 0);
}

}  // namespace
}  // namespace ivy::comm::test
