// SPDX-License-Identifier: Apache-2.0
// Repeated cycles of init, collectives, groups, work, messages and an end at a random point: by
// finalize, by abort, and in the last cycle of a world by the death of a rank. No descriptor,
// mapping or file may remain. A thousand cycles, or a hundred under a sanitizer.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"
#include "tests/support/leak_guard.h"

namespace ivy::comm::test {
namespace {

constexpr int kLivesOfAWorld = 25;

// Of each shape.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kWorlds = 1;
#else
constexpr int kWorlds = 10;
#endif

std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd") != std::string::npos || line.find("/dev/shm") != std::string::npos;
  }
  return count;
}

// Returns the number of named shared memory files of a process.
std::size_t count_files(pid_t pid) {
  const std::string ours = "ivycomm-" + std::to_string(pid) + "-";
  std::size_t count = 0;
  DIR* const directory = opendir("/dev/shm");
  while (const dirent* const entry = readdir(directory)) {
    count += std::string(entry->d_name).rfind(ours, 0) == 0;
  }
  closedir(directory);
  return count;
}

enum class End : std::uint8_t { kOk, kAbort, kAbortInOtherThread, kWorkLeftOver, kKill, kExit };

// The same choices on every rank.
struct Plan {
  End end;
  int rank;         // The rank that ends the world.
  unsigned steps;   // Before the end.
  unsigned micros;  // After the last step, if another thread ends it.
};

Plan plan_of(std::mt19937& random, int ranks, bool is_last) {
  Plan plan = {};
  plan.end = static_cast<End>(is_last ? 4 + random() % 2 : random() % 4);
  plan.rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
  plan.steps = static_cast<unsigned>(random() % 6);
  plan.micros = static_cast<unsigned>(random() % 400);
  return plan;
}

// Runs one step of a cycle, the same on all ranks. Returns its code.
int step(ivy_comm* comm, unsigned number, std::vector<float>& send, std::vector<float>& receive) {
  const std::vector<NamedOperation>& all = operations();
  const std::size_t count = number % 3 == 0 ? 20'000 : 7;
  if (number % 4 != 1) {
    return all[number % all.size()].call(comm, send.data(), receive.data(), count, nullptr);
  }
  ivy_work* work = nullptr;
  const ivy_call call = call_for_work(&work);
  const int code =
      ivy_all_reduce(comm, send.data(), receive.data(), count, IVY_F32, IVY_SUM, &call);
  if (code != IVY_OK) return code;
  const int outcome = ivy_work_wait(work, -1);
  EXPECT_EQ(ivy_work_free(work), IVY_OK);
  return outcome;
}

void end_by(const Plan& plan, ivy_comm* world) {
  switch (plan.end) {
    case End::kOk:
    case End::kWorkLeftOver:
      return;
    case End::kAbort:
    case End::kAbortInOtherThread:
      EXPECT_EQ(ivy_comm_abort(world, "enough of it"), IVY_OK);
      return;
    case End::kKill:
      kill(getpid(), SIGKILL);
      return;
    case End::kExit:
      _exit(0);
  }
}

void live(const Plan& plan, unsigned seed, int rank) {
  ivy_options options = {};
  options.struct_bytes = sizeof options;
  options.rank = -1;
  options.world_size = -1;
  options.timeout_ms = scaled_time(seconds(20)).count();
  ivy_comm* world = nullptr;
  ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
  std::vector<float> send(20'000 * 4, 1);
  std::vector<float> receive(send.size());
  int code = IVY_OK;
  for (unsigned done = 0; done < plan.steps && code == IVY_OK; ++done) {
    code = step(world, seed + done, send, receive);
  }
  // The rank that ends the world may have left the last step before the others, which then report
  // the end in that step.
  const bool is_death = plan.end == End::kKill || plan.end == End::kExit;
  const int reported = is_death ? IVY_UNAVAILABLE : IVY_CANCELLED;
  // They also report an operation that only one rank called: ranks that have finished the step
  // compare it with their end.
  const bool is_of_left_over = plan.end == End::kWorkLeftOver && code == IVY_ABORTED;
  EXPECT_TRUE(code == IVY_OK || is_of_left_over || (plan.end != End::kOk && code == reported))
      << ivy_last_error();
  const bool is_sudden = plan.end != End::kOk && plan.end != End::kWorkLeftOver;
  std::thread other;
  if (is_sudden && rank == plan.rank && plan.end == End::kAbort) end_by(plan, world);
  if (is_sudden && rank == plan.rank && plan.end != End::kAbort) {
    other = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(plan.micros));
      end_by(plan, world);
    });
  }
  for (unsigned more = 0; is_sudden && code == IVY_OK; ++more) {
    code = step(world, seed + plan.steps + more, send, receive);
  }
  if (other.joinable()) other.join();
  if (is_sudden) {
    EXPECT_EQ(code, reported) << ivy_last_error();
  }
  if (is_death) {
    EXPECT_EQ(last_failure().rank, plan.rank) << ivy_last_error();
  }
  ivy_work* work = nullptr;
  const ivy_call call = call_for_work(&work);
  if (plan.end == End::kWorkLeftOver && rank == plan.rank) {
    EXPECT_EQ(ivy_barrier(world, &call), IVY_OK);
  }
  const int ended = ivy_finalize(world);
  // Ranks that still compare their last operation report an operation that no other rank calls.
  EXPECT_TRUE(ended == IVY_OK || (plan.end == End::kWorkLeftOver && ended == IVY_ABORTED))
      << ivy_last_error();
  if (work != nullptr) {
    EXPECT_NE(ivy_work_wait(work, -1), IVY_OK);
    EXPECT_EQ(ivy_work_free(work), IVY_OK);
  }
}

class CycleTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(CycleTest, LeavesNothingAfterAnyEnd) {
  const char* const given = std::getenv("IVY_TEST_SEED");
  const auto first_seed = static_cast<unsigned>(given != nullptr ? std::atoi(given) : 7);
  for (int turn = 0; turn < kWorlds; ++turn) {
    const unsigned seed = first_seed + static_cast<unsigned>(turn) * 1000;
    SCOPED_TRACE("IVY_TEST_SEED=" + std::to_string(seed));
    std::mt19937 ending(seed);
    std::vector<Plan> plans;
    for (int life = 0; life < kLivesOfAWorld; ++life) {
      plans.push_back(plan_of(ending, rank_count(GetParam()), life + 1 == kLivesOfAWorld));
    }
    Shared<std::atomic<pid_t>[8]> pids;
    const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
      (*pids)[rank] = getpid();
      int descriptors = -1;
      for (std::size_t life = 0; life < plans.size(); ++life) {
        live(plans[life], seed + static_cast<unsigned>(life), rank);
        if (::testing::Test::HasFailure()) {
          std::printf("in life %zu\n", life);
          return;
        }
        const int now = ivy::test::LeakGuard::count_descriptors();
        if (life == 0) descriptors = now;
        EXPECT_EQ(now, descriptors) << "after cycle " << life;
        EXPECT_EQ(count_mappings(), 0U) << "after cycle " << life;
      }
    });
    expect_ok(ends, plans.back().rank);
    for (int rank = 0; rank < rank_count(GetParam()); ++rank) {
      EXPECT_EQ(count_files((*pids)[rank]), 0U) << "files of rank " << rank;
    }
    if (HasFailure()) return;
  }
}

// Rank 0 creates the world's memory with a name and is killed as soon as the file exists, or a
// little later. The survivors remove the name.
TEST(MakerTest, LeavesNoFileAfterItIsKilled) {
  for (const int micros : {0, 0, 0, 300, 1000, 3000}) {
    SCOPED_TRACE(micros);
    Shared<std::atomic<pid_t>> maker;
    const std::vector<RankEnd> ends = run_world(one_host(3), [&](int rank) {
      std::atomic<bool> is_over{false};
      std::thread killer;
      if (rank == 0) {
        *maker = getpid();
        killer = std::thread([&] {
          while (count_files(getpid()) == 0 && !is_over) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::microseconds(micros));
          kill(getpid(), SIGKILL);
        });
      }
      ivy_options options = {};
      options.struct_bytes = sizeof options;
      options.rank = -1;
      options.world_size = -1;
      ivy_comm* world = nullptr;
      // All ranks may have joined already.
      if (ivy_init(&options, &world) != IVY_OK) {
        EXPECT_EQ(last_failure().rank, 0) << ivy_last_error();
      }
      is_over = true;
      if (rank == 0) killer.join();
    });
    expect_ok(ends, 0);
    EXPECT_EQ(count_files(*maker), 0U);
    if (HasFailure()) return;
  }
}

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

INSTANTIATE_TEST_SUITE_P(Worlds, CycleTest,
                         ::testing::Values(one_host(2), one_host(4), host_each(2), Hosts{2, 2}),
                         name_of_world);

// Many more ranks than processors, with nested groups and work on all of them at the same time.
TEST(StormTest, RunsWorkOnManyGroupsOfSixteenRanks) {
  WorldOptions options;
  options.deadline = seconds(100);
  expect_ok(run_world(
      one_host(16),
      [](int rank) {
        const World world;
        ASSERT_TRUE(world);
        for (int round = 0; round < 4; ++round) {
          std::vector<ivy_comm*> groups;
          for (const int parts : {1, 2, 3}) {
            ivy_comm* group = nullptr;
            ASSERT_EQ(ivy_comm_split(world, (rank + round) % parts, -rank, &group), IVY_OK)
                << ivy_last_error();
            groups.push_back(group);
          }
          std::vector<std::vector<float>> values(groups.size() * 4);
          std::vector<ivy_work*> works(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            // Every rank starts with another group.
            const std::size_t g = (i + static_cast<std::size_t>(rank)) % groups.size();
            values[i].assign(3000, 1);
            const ivy_call call = call_for_work(&works[i]);
            ASSERT_EQ(ivy_all_reduce(groups[g], IVY_IN_PLACE, values[i].data(), values[i].size(),
                                     IVY_F32, IVY_SUM, &call),
                      IVY_OK);
          }
          for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_EQ(ivy_work_wait(works[i], -1), IVY_OK) << ivy_last_error();
            const std::size_t g = (i + static_cast<std::size_t>(rank)) % groups.size();
            EXPECT_EQ(values[i].back(), static_cast<float>(ivy_comm_size(groups[g])));
            EXPECT_EQ(ivy_work_free(works[i]), IVY_OK);
          }
          for (ivy_comm* const group : groups) EXPECT_EQ(ivy_comm_free(group), IVY_OK);
        }
      },
      options));
}

}  // namespace
}  // namespace ivy::comm::test
