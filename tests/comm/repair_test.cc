// SPDX-License-Identifier: Apache-2.0
// A rank dies, and the survivors repair their world in place: without it (shrink), or with a
// restarted process (grow). These worlds have no supervisor: ranks learn of deaths from the kernel,
// their connections and the new member.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  _exit(9);
}

// Returns each rank's number in the job, in the order of the world's ranks.
std::vector<std::int32_t> everybody(ivy_comm* world, std::int32_t own) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(ivy_comm_size(world)), -1);
  EXPECT_EQ(ivy_all_gather(world, &own, all.data(), 1, IVY_I32, nullptr), IVY_OK)
      << ivy_last_error();
  return all;
}

// Large enough to use slots, and streams between hosts.
void expect_sums(ivy_comm* world) {
  std::vector<float> values(300'000, 1.0F);
  EXPECT_EQ(
      ivy_all_reduce(world, values.data(), values.data(), values.size(), IVY_F32, IVY_SUM, nullptr),
      IVY_OK)
      << ivy_last_error();
  EXPECT_EQ(values.front(), static_cast<float>(ivy_comm_size(world)));
  EXPECT_EQ(values.back(), static_cast<float>(ivy_comm_size(world)));
}

// Synchronizes without a communicator, because a repair would break a barrier that some ranks are
// still in.
void meet(std::atomic<int>& met, int count) {
  for (++met; met.load() < count;) std::this_thread::sleep_for(milliseconds(1));
}

void expect_broken(ivy_comm* world) {
  int code = IVY_OK;
  while (code == IVY_OK) code = ivy_barrier(world, nullptr);
}

std::vector<std::int32_t> ranks_but(int ranks, const std::vector<std::int32_t>& lost) {
  std::vector<std::int32_t> left;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    if (std::find(lost.begin(), lost.end(), rank) == lost.end()) left.push_back(rank);
  }
  return left;
}

class RepairOnHosts : public ::testing::TestWithParam<Hosts> {};

TEST_P(RepairOnHosts, ShrinkContinuesWithTheSurvivorsAfterEachDeath) {
  const int ranks = rank_count(GetParam());
  Shared<std::atomic<int>> met;
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    int meetings = 0;
    // First rank 0, which created its host's memory, then the last rank.
    std::vector<std::int32_t> lost;
    for (const std::int32_t victim : {0, ranks - 1}) {
      meetings += ranks - static_cast<int>(lost.size());
      meet(*met, meetings);
      if (rank == victim) die();
      lost.push_back(victim);
      expect_broken(world);
      ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
      EXPECT_EQ(everybody(world, rank), ranks_but(ranks, lost));
      expect_sums(world);
    }
  });
  for (int rank = 1; rank < ranks - 1; ++rank) {
    EXPECT_TRUE(ends[static_cast<std::size_t>(rank)].is_ok())
        << "rank " << rank << ":\n"
        << ends[static_cast<std::size_t>(rank)].output;
  }
}

TEST_P(RepairOnHosts, GrowIncludesARestartedProcess) {
  const int ranks = rank_count(GetParam());
  const int victim = ranks - 1;
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    if (rank == victim) {
      const pid_t first = fork();
      if (first == 0) {
        const World world;
        die();
      }
      int status = 0;
      waitpid(first, &status, 0);
      setenv("IVY_REJOIN", "1", 1);
    }
    EXPECT_EQ(ivy_restart_count(), rank == victim ? 1 : 0);
    const World world;
    ASSERT_TRUE(world);
    if (rank != victim) {
      expect_broken(world);
      ASSERT_EQ(ivy_comm_grow(world, nullptr), IVY_OK) << ivy_last_error();
    }
    EXPECT_EQ(everybody(world, rank), ranks_but(ranks, {}));
    expect_sums(world);
  });
  expect_ok(ends);
}

INSTANTIATE_TEST_SUITE_P(, RepairOnHosts, ::testing::Values(one_host(4), Hosts{2, 2}, host_each(3)),
                         [](const auto& hosts) { return hosts_text(hosts.param); });

TEST(Repair, ShrinksThenGrowsThenStartsAnotherWorld) {
  Shared<std::atomic<int>> met;
  const std::vector<RankEnd> ends = run_world({2, 1}, [&](int rank) {
    if (rank == 1) {
      const pid_t first = fork();
      if (first == 0) {
        const World world;
        die();
      }
      int status = 0;
      waitpid(first, &status, 0);
      setenv("IVY_REJOIN", "1", 1);
    }
    {
      const World world;
      ASSERT_TRUE(world);
      if (rank != 1) {
        expect_broken(world);
        ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
        EXPECT_EQ(everybody(world, rank), (std::vector<std::int32_t>{0, 2}));
        meet(*met, 2);
        ASSERT_EQ(ivy_comm_grow(world, nullptr), IVY_OK) << ivy_last_error();
      }
      EXPECT_EQ(everybody(world, rank), (std::vector<std::int32_t>{0, 1, 2}));
    }
    // All ranks have finalized. The next world starts normally, also in the process that joined
    // later.
    const World another;
    ASSERT_TRUE(another);
    expect_sums(another);
  });
  expect_ok(ends);
}

TEST(Repair, TheFirstCallBreaksOperationsOfOtherRanks) {
  Shared<std::atomic<int>> met;
  const std::vector<RankEnd> ends = run_world({2, 1}, [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank == 0 ? 0 : 1, 0, &group), IVY_OK) << ivy_last_error();
    meet(*met, 3);
    // No rank has died: rank 0 starts the repair, rank 1 is in an operation of a group, rank 2 in
    // one of the world.
    if (rank == 1) {
      EXPECT_EQ(ivy_barrier(group, nullptr), IVY_OK);
      std::int32_t value = 0;
      const int code = ivy_recv(group, &value, 1, IVY_I32, 1, 0, nullptr, nullptr);
      EXPECT_NE(code, IVY_OK);
    }
    if (rank == 2) {
      EXPECT_EQ(ivy_barrier(group, nullptr), IVY_OK);
      EXPECT_EQ(ivy_barrier(world, nullptr), IVY_CANCELLED) << ivy_last_error();
      EXPECT_NE(std::string(ivy_last_error()).find("it calls shrink of the world"),
                std::string::npos)
          << ivy_last_error();
    }
    ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(everybody(world, rank), (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_EQ(ivy_barrier(group, nullptr), IVY_FAILED_PRECONDITION);
  });
  expect_ok(ends);
}

TEST(Repair, ExcludesARankThatDiesDuringTheRepair) {
  const std::vector<RankEnd> ends = run_world(one_host(4), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 3) die();
    expect_broken(world);
    if (rank == 1) {
      // At random: before its call, during it, or after the decision.
      std::thread killer([] {
        std::this_thread::sleep_for(milliseconds(5 + monotonic_ms() % 60));
        die();
      });
      ivy_comm_shrink(world, nullptr);
      expect_broken(world);
      killer.join();
    }
    do {
      ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
      // If the repair was complete on all ranks before the death, the new world reports it.
    } while (ivy_barrier(world, nullptr) != IVY_OK || ivy_comm_size(world) == 3);
    EXPECT_EQ(everybody(world, rank), (std::vector<std::int32_t>{0, 2}));
  });
  for (const std::size_t rank : {0, 2}) EXPECT_TRUE(ends[rank].is_ok()) << ends[rank].output;
}

TEST(Repair, NamesMissingRanksAndCanBeRetried) {
  const std::vector<RankEnd> ends = run_world(one_host(3), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 2) {
      expect_broken(world);
      std::this_thread::sleep_for(scaled_time(milliseconds(1'500)));
      // The others have given up. It immediately gets the same answer.
      EXPECT_EQ(ivy_comm_shrink(world, nullptr), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    } else {
      const ivy_call call = call_with_timeout(scaled_time(milliseconds(500)));
      EXPECT_EQ(ivy_comm_shrink(world, &call), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    }
    EXPECT_NE(std::string(ivy_last_error()).find("rank 2 has not called shrink"), std::string::npos)
        << ivy_last_error();
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_FAILED_PRECONDITION);
    ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(everybody(world, rank), (std::vector<std::int32_t>{0, 1, 2}));
  });
  expect_ok(ends);
}

TEST(Repair, RejectsInvalidCalls) {
  const std::vector<RankEnd> ends = run_world(one_host(2), [&](int rank) {
    EXPECT_EQ(ivy_comm_shrink(nullptr, nullptr), IVY_INVALID_ARGUMENT);
    World world;
    ASSERT_TRUE(world);
    ivy_comm* group = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_shrink(group, nullptr), IVY_INVALID_ARGUMENT);
    // Different calls: both ranks get an error that names both calls.
    EXPECT_EQ(rank == 0 ? ivy_comm_shrink(world, nullptr) : ivy_comm_grow(world, nullptr),
              IVY_ABORTED);
    EXPECT_NE(std::string(ivy_last_error()).find("rank 0 calls shrink, rank 1 calls grow"),
              std::string::npos)
        << ivy_last_error();
    const pid_t child = fork();
    if (child == 0) _exit(ivy_comm_shrink(world, nullptr) == IVY_FAILED_PRECONDITION ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    // Interrupted from another thread, on both ranks.
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(300));
        EXPECT_EQ(ivy_comm_abort(world, "enough"), IVY_OK);
      });
    } else {
      std::this_thread::sleep_for(scaled_time(milliseconds(1'000)));
    }
    EXPECT_EQ(ivy_comm_shrink(world, nullptr), IVY_CANCELLED) << ivy_last_error();
    if (other.joinable()) other.join();
    ivy_comm* const gone = world;
    EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_shrink(gone, nullptr), IVY_FAILED_PRECONDITION);
  });
  expect_ok(ends);
}

TEST(Repair, RepairsAWorldOfOne) {
  ivy_options options = {};
  options.struct_bytes = sizeof options;
  options.init_method = "self://";
  options.rank = options.world_size = -1;
  ivy_comm* world = nullptr;
  ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
  EXPECT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
  EXPECT_EQ(ivy_comm_size(world), 1);
  EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
}

struct Held {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t mappings = 0;
};

std::size_t entries(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

Held held() {
  std::ifstream maps("/proc/self/maps");
  Held now{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  return now;
}

TEST(Repair, DoesNotLeakInAHundredRepairs) {
  Shared<std::atomic<int>> met;
  const std::vector<RankEnd> ends = run_world({2, 1}, [&](int) {
    const World world;
    ASSERT_TRUE(world);
    Held before;
    for (int repair = 0; repair < 100; ++repair) {
      ASSERT_EQ(ivy_comm_shrink(world, nullptr), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      meet(*met, 3 * (repair + 1));
      if (repair == 10) before = held();
    }
    const Held after = held();
    // One may be a connection during its handshake; a leak would add one in each repair.
    EXPECT_LE(after.descriptors, before.descriptors + 2);
    EXPECT_LE(after.threads, before.threads + 2);
    EXPECT_LE(after.mappings, before.mappings + 32);  // Of the allocator or a sanitizer.
  });
  expect_ok(ends);
}

}  // namespace
}  // namespace ivy::comm::test
