// SPDX-License-Identifier: Apache-2.0
// Joining and leaving, mismatches, aborts, timeouts, groups and asynchronous work.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"
#include "tests/support/leak_guard.h"

namespace ivy::comm::test {
namespace {

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

class WorldsTest : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WorldsTest,
                         ::testing::Values(one_host(2), one_host(4), host_each(2), host_each(4),
                                           Hosts{3, 1}),
                         name_of_world);

std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd") != std::string::npos || line.find("/dev/shm") != std::string::npos;
  }
  return count;
}

int sum_ones(ivy_comm* comm, float& sum) {
  sum = 1;
  return ivy_all_reduce(comm, IVY_IN_PLACE, &sum, 1, IVY_F32, IVY_SUM, nullptr);
}

float sum_of_ones(ivy_comm* comm) {
  float sum = 0;
  EXPECT_EQ(sum_ones(comm, sum), IVY_OK) << ivy_last_error();
  return sum;
}

// ---- Joining and leaving -----------------------------------------------------------------------

TEST_P(WorldsTest, CanBeJoinedAndLeftRepeatedly) {
  const int cycles = rank_count(GetParam()) == 2 ? 100 : 20;
  expect_ok(run_world(GetParam(), [&](int rank) {
    int descriptors = 0;
    for (int cycle = 0; cycle < cycles; ++cycle) {
      {
        const World world;
        ASSERT_TRUE(world) << cycle;
        ASSERT_EQ(ivy_comm_rank(world), rank);
        ASSERT_EQ(sum_of_ones(world), static_cast<float>(ivy_comm_size(world)));
        ivy_comm* group = nullptr;
        ASSERT_EQ(ivy_comm_split(world, 0, 0, &group), IVY_OK) << ivy_last_error();
        ASSERT_EQ(sum_of_ones(group), static_cast<float>(ivy_comm_size(world)));
      }
      if (cycle == 0) descriptors = ivy::test::LeakGuard::count_descriptors();
    }
    EXPECT_EQ(ivy::test::LeakGuard::count_descriptors(), descriptors);
    EXPECT_EQ(count_mappings(), 0U);
  }));
}

TEST(LifeTest, InitNamesMissingRanks) {
  expect_ok(run_world(one_host(4), [](int rank) {
    if (rank == 1 || rank == 3) return;
    ivy_options options = {};
    options.struct_bytes = sizeof options;
    options.rank = -1;
    options.world_size = -1;
    options.timeout_ms = scaled_time(std::chrono::milliseconds(300)).count();
    ivy_comm* world = nullptr;
    EXPECT_EQ(ivy_init(&options, &world), IVY_DEADLINE_EXCEEDED);
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find('1'), std::string::npos) << text;
    EXPECT_NE(text.find('3'), std::string::npos) << text;
  }));
}

TEST(LifeTest, RejectsInvalidArgumentsAndContinues) {
  expect_ok(run_world(one_host(2), [](int) {
    const World world;
    ASSERT_TRUE(world);
    float value = 1;
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, 99, IVY_SUM, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_BAND, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_EQ(ivy_all_reduce(world, nullptr, &value, 1, IVY_F32, IVY_SUM, nullptr),
              IVY_INVALID_ARGUMENT);
    EXPECT_EQ(ivy_broadcast(world, &value, 1, IVY_F32, 2, nullptr), IVY_INVALID_ARGUMENT);
    EXPECT_EQ(ivy_send(world, &value, 1, IVY_F32, 1, -5, nullptr), IVY_INVALID_ARGUMENT);
    ivy_call call = {};  // struct_bytes is not set.
    EXPECT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_SUM, &call),
              IVY_INVALID_ARGUMENT);
    EXPECT_EQ(sum_of_ones(world), 2.0F);
  }));
}

// ---- Mismatches --------------------------------------------------------------------------------

struct Mismatch {
  const char* name;
  std::function<int(ivy_comm*, float*, float*)> first;   // On all ranks but the last.
  std::function<int(ivy_comm*, float*, float*)> second;  // On the last rank.
  std::vector<std::string> shown;
};

// A rank that can leave before the others arrive gets the error in the next operation.
int then_barrier(ivy_comm* comm, int code) {
  return code != IVY_OK ? code : ivy_barrier(comm, nullptr);
}

std::vector<Mismatch> uneven_mismatches() {
  const auto gather_v = [](std::size_t own) {
    return [=](ivy_comm* comm, float* send, float* receive) {
      const std::vector<std::size_t> counts(static_cast<std::size_t>(ivy_comm_size(comm)), 3);
      return then_barrier(comm, ivy_gather_v(comm, send, own, receive, counts.data(), nullptr,
                                             IVY_F32, 0, nullptr));
    };
  };
  const auto scatter_v = [](std::size_t own) {
    return [=](ivy_comm* comm, float* send, float* receive) {
      const std::vector<std::size_t> counts(static_cast<std::size_t>(ivy_comm_size(comm)), 3);
      return then_barrier(comm, ivy_scatter_v(comm, send, counts.data(), nullptr, receive, own,
                                              IVY_F32, 0, nullptr));
    };
  };
  // Only the last rank receives elements.
  const auto reduce_scatter_v = [](std::size_t last) {
    return [=](ivy_comm* comm, float* send, float* receive) {
      std::vector<std::size_t> counts(static_cast<std::size_t>(ivy_comm_size(comm)), 0);
      counts.back() = last;
      return ivy_reduce_scatter_v(comm, send, receive, counts.data(), IVY_F32, IVY_SUM, nullptr);
    };
  };
  const auto split = [](ivy_comm* comm, float*, float*) {
    ivy_comm* group = nullptr;
    return ivy_comm_split(comm, 0, 0, &group);
  };
  const auto group = [](ivy_comm* comm, float*, float*) {
    const std::int32_t ranks[] = {0, 1};
    ivy_comm* pair = nullptr;
    return ivy_comm_group(comm, ranks, 2, &pair);
  };
  return {
      {"gather_v", gather_v(3), gather_v(7), {" 28 bytes", "expects 12"}},
      {"scatter_v", scatter_v(3), scatter_v(7), {" 12 bytes", "expects 28"}},
      {"reduce_scatter_v", reduce_scatter_v(30), reduce_scatter_v(40), {"30 in all", "40 in all"}},
      {"split_or_group", split, group, {"calls split", "calls group"}},
  };
}

std::vector<Mismatch> mismatches() {
  const auto all_reduce = [](std::size_t count, int dtype, int op) {
    return [=](ivy_comm* comm, float* send, float* receive) {
      return ivy_all_reduce(comm, send, receive, count, dtype, op, nullptr);
    };
  };
  const auto barrier = [](ivy_comm* comm, float*, float*) { return ivy_barrier(comm, nullptr); };
  const auto broadcast = [](int root) {
    return [=](ivy_comm* comm, float* send, float*) {
      return then_barrier(comm, ivy_broadcast(comm, send, 5, IVY_F32, root, nullptr));
    };
  };
  const auto all_gather = [](ivy_comm* comm, float* send, float* receive) {
    return ivy_all_gather(comm, send, receive, 4, IVY_F32, nullptr);
  };
  const auto coalesced = [](std::size_t first, std::size_t second) {
    return [=](ivy_comm* comm, float* send, float* receive) {
      const void* const from[] = {send, send + first};
      void* const to[] = {receive, receive + first};
      const std::size_t counts[] = {first, second};
      return ivy_all_reduce_coalesced(comm, 2, from, to, counts, IVY_F32, IVY_SUM, nullptr);
    };
  };
  return {
      {"operation",
       all_reduce(4, IVY_F32, IVY_SUM),
       all_gather,
       {"calls all_reduce", "calls all_gather"}},
      {"dtype",
       all_reduce(4, IVY_F32, IVY_SUM),
       all_reduce(4, IVY_I32, IVY_SUM),
       {"of 4 f32", "of 4 i32"}},
      {"count",
       all_reduce(4, IVY_F32, IVY_SUM),
       all_reduce(5, IVY_F32, IVY_SUM),
       {"of 4 f32", "of 5 f32"}},
      {"large_count",
       all_reduce(100'000, IVY_F32, IVY_SUM),
       all_reduce(3, IVY_F32, IVY_SUM),
       {"of 100000 f32", "of 3 f32"}},
      {"reduction",
       all_reduce(4, IVY_F32, IVY_SUM),
       all_reduce(4, IVY_F32, IVY_MAX),
       {"(sum)", "(max)"}},
      {"root", broadcast(0), broadcast(1), {"5 f32 from rank 0", "5 f32 from rank 1"}},
      {"order", all_reduce(4, IVY_F32, IVY_SUM), barrier, {"calls all_reduce", "calls barrier"}},
      {"premul_sum",
       all_reduce(4, IVY_F32, IVY_PREMUL_SUM),
       all_reduce(4, IVY_F32, IVY_SUM),
       {"(premul_sum)", "(sum)"}},
      {"parts", coalesced(3, 5), coalesced(4, 4), {"counts #", "8 in all"}},
      {"parts_and_whole", coalesced(3, 5), all_reduce(8, IVY_F32, IVY_SUM), {"counts #", "of 8"}},
  };
}

TEST_P(WorldsTest, ReportsBothSidesOfAMismatchOnEveryRank) {
  std::vector<Mismatch> all = mismatches();
  for (const Mismatch& mismatch : uneven_mismatches()) all.push_back(mismatch);
  for (const Mismatch& mismatch : all) {
    SCOPED_TRACE(mismatch.name);
    expect_ok(run_world(GetParam(), [&](int rank) {
      const World world(seconds(10));
      ASSERT_TRUE(world);
      std::vector<float> send(400'000, 1);
      std::vector<float> receive(400'000);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      const bool is_last = rank == ivy_comm_size(world) - 1;
      const int code =
          (is_last ? mismatch.second : mismatch.first)(world, send.data(), receive.data());
      const std::string text = ivy_last_error();
      EXPECT_EQ(code, IVY_ABORTED) << text;
      for (const std::string& side : mismatch.shown) {
        EXPECT_NE(text.find(side), std::string::npos) << side << " in: " << text;
      }
      EXPECT_EQ(ivy_barrier(world, nullptr), code);
    }));
    if (HasFailure()) return;
  }
}

// ---- Aborts and timeouts -----------------------------------------------------------------------

// Measures the median of several aborts, because other load may delay one of them.
TEST_P(WorldsTest, AbortWakesEveryWaitingRank) {
  constexpr std::size_t kAborts = 5;
  struct Board {
    std::atomic<std::int64_t> aborted_ms[kAborts]{};
    std::atomic<int> waiting[kAborts]{};
  };
  Shared<Board> board;
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    std::vector<std::int64_t> took;
    for (std::size_t turn = 0; turn < kAborts; ++turn) {
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_barrier(group, nullptr), IVY_OK) << ivy_last_error();
      if (rank == 0) {
        EXPECT_TRUE(ivy::test::eventually(
            [&] { return board->waiting[turn] == ivy_comm_size(world) - 1; }, seconds(10)));
        std::this_thread::sleep_for(milliseconds(30));  // They wait by then.
        board->aborted_ms[turn] = monotonic_ms();
        EXPECT_EQ(ivy_comm_abort(group, "the test wants it"), IVY_OK);
        EXPECT_EQ(ivy_barrier(group, nullptr), IVY_CANCELLED);
        continue;
      }
      ++board->waiting[turn];
      float sum = 0;
      EXPECT_EQ(sum_ones(group, sum), IVY_CANCELLED);
      took.push_back(monotonic_ms() - board->aborted_ms[turn]);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("the test wants it"), std::string::npos) << text;
    }
    if (rank == 0) return;
    std::sort(took.begin(), took.end());
    // Without a supervisor, ranks of other hosts notice through the connection or the store.
    const bool is_present = ivy_comm_node_count(world) == 1;
    EXPECT_LE(took[kAborts / 2], scaled_time(milliseconds(is_present ? 10 : 50)).count());
  }));
}

// Ranks that wait for a late rank, not for the aborting one, are notified through the store.
TEST(AbortTest, WakesRanksThatWaitForAnother) {
  constexpr std::size_t kAborts = 7;
  struct Board {
    std::atomic<std::int64_t> aborted_ms[kAborts]{};
    std::atomic<int> waiting{0};
    std::atomic<int> reported{0};
  };
  Shared<Board> board;
  expect_ok(run_world(host_each(3), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    std::vector<std::int64_t> took;
    for (std::size_t turn = 0; turn < kAborts; ++turn) {
      const int so_many = static_cast<int>(turn) + 1;
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_barrier(group, nullptr), IVY_OK) << ivy_last_error();
      if (rank == 1) {
        ++board->waiting;
        float value = 1;
        EXPECT_EQ(ivy_broadcast(group, &value, 1, IVY_F32, 2, nullptr), IVY_CANCELLED);
        took.push_back(monotonic_ms() - board->aborted_ms[turn]);
        ++board->reported;
      } else if (rank == 0) {
        EXPECT_TRUE(ivy::test::eventually([&] { return board->waiting == so_many; }, seconds(10)));
        std::this_thread::sleep_for(milliseconds(20));  // It waits by then.
        board->aborted_ms[turn] = monotonic_ms();
        EXPECT_EQ(ivy_comm_abort(group, "enough"), IVY_OK);
      }
      EXPECT_TRUE(ivy::test::eventually([&] { return board->reported == so_many; }, seconds(10)));
    }
    if (rank != 1) return;
    std::sort(took.begin(), took.end());
    // Half of the interval between two regular queries of the store.
    EXPECT_LE(took[kAborts / 2], scaled_time(milliseconds(100)).count());
  }));
}

// A signal handler reads from this pipe, so the interrupted thread does not return from its call
// until a byte is written.
int stuck_until[2] = {-1, -1};
void stay_in_a_system_call(int) {
  char byte = 0;
  static_cast<void>(!read(stuck_until[0], &byte, 1));
}

struct StuckBoard {
  std::atomic<int> waiting{0};
  std::atomic<std::int64_t> aborted_ms{0};
  std::atomic<std::int64_t> reported_ms{0};
  std::atomic<bool> is_over{false};
};

// One thread of this rank is suspended inside the operation, another one aborts.
void abort_beside_a_stuck_thread(ivy_comm* world, StuckBoard& board) {
  ASSERT_EQ(pipe(stuck_until), 0);
  ASSERT_NE(std::signal(SIGUSR1, stay_in_a_system_call), SIG_ERR);
  std::atomic<bool> has_come_out{false};
  std::thread stuck([&] {
    float sum = 0;
    EXPECT_EQ(sum_ones(world, sum), IVY_CANCELLED) << ivy_last_error();
    has_come_out = true;
  });
  EXPECT_TRUE(ivy::test::eventually([&] { return board.waiting == 1; }, seconds(10)));
  std::this_thread::sleep_for(milliseconds(50));  // Both wait by then.
  ASSERT_EQ(pthread_kill(stuck.native_handle(), SIGUSR1), 0);
  std::this_thread::sleep_for(milliseconds(50));
  board.aborted_ms = monotonic_ms();
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(ivy_comm_abort(world, "one is stuck"), IVY_OK);
  }
  EXPECT_LT(monotonic_ms() - board.aborted_ms, scaled_time(milliseconds(500)).count());
  EXPECT_TRUE(ivy::test::eventually([&] { return board.reported_ms != 0; }, seconds(10)));
  EXPECT_FALSE(has_come_out);
  EXPECT_EQ(write(stuck_until[1], "x", 1), 1);
  stuck.join();
}

TEST(AbortTest, DoesNotWaitForAThreadStuckInAnOperation) {
  for (const Hosts& hosts : {host_each(3), Hosts{2, 1}, one_host(3)}) {
    SCOPED_TRACE(hosts_text(hosts));
    Shared<StuckBoard> board;
    expect_ok(run_world(hosts, [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      if (rank == 0) {
        abort_beside_a_stuck_thread(world, *board);
        board->is_over = true;
      } else if (rank == 1) {
        ++board->waiting;
        float sum = 0;
        EXPECT_EQ(sum_ones(world, sum), IVY_CANCELLED) << ivy_last_error();
        board->reported_ms = monotonic_ms();
        EXPECT_LT(board->reported_ms - board->aborted_ms, scaled_time(seconds(1)).count());
      }
      EXPECT_TRUE(ivy::test::eventually([&] { return board->is_over.load(); }, seconds(30)));
    }));
  }
}

// The largest timeouts in milliseconds must not overflow in any function that takes one.
TEST(TimeoutTest, TheLongestTimeoutDoesNotExpireImmediately) {
  constexpr std::int64_t kLongest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t longest : {kLongest, kLongest / 1'000'000 + 1}) {
    Shared<std::atomic<int>> may_come;
    expect_ok(run_world(host_each(2), [&](int rank) {
      ivy_options options = {};
      options.struct_bytes = sizeof options;
      options.rank = -1;
      options.world_size = -1;
      options.timeout_ms = longest;
      ivy_comm* world = nullptr;
      ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
      for (int turn = 1; turn <= 2; ++turn) {
        if (rank == 1) {
          EXPECT_TRUE(ivy::test::eventually([&] { return *may_come >= turn; }, seconds(20)));
          EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
          continue;
        }
        ivy_work* work = nullptr;
        ivy_call call = call_for_work(&work);
        if (turn == 2) call.timeout_ms = longest;
        ASSERT_EQ(ivy_barrier(world, &call), IVY_OK);
        std::thread other([&] {
          std::this_thread::sleep_for(milliseconds(30));
          *may_come = turn;
        });
        EXPECT_EQ(ivy_work_wait(work, longest), IVY_OK) << ivy_last_error();
        EXPECT_EQ(ivy_work_free(work), IVY_OK);
        other.join();
      }
      EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
    }));
  }
}

// ---- Groups ------------------------------------------------------------------------------------

TEST_P(WorldsTest, SplitsByColourAndOrdersByKey) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    ivy_comm* reversed = nullptr;
    ASSERT_EQ(ivy_comm_split(world, 0, -rank, &reversed), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_rank(reversed), size - 1 - rank);
    EXPECT_EQ(ivy_comm_world_rank(reversed, 0), size - 1);
    int root = rank;
    EXPECT_EQ(ivy_broadcast(reversed, &root, 1, IVY_I32, 0, nullptr), IVY_OK) << ivy_last_error();
    EXPECT_EQ(root, size - 1);

    ivy_comm* parity = nullptr;
    ASSERT_EQ(ivy_comm_split(world, rank % 2, 0, &parity), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_rank(parity), rank / 2);
    EXPECT_EQ(sum_of_ones(parity), static_cast<float>((size + 1 - rank % 2) / 2));

    ivy_comm* none = parity;
    ASSERT_EQ(ivy_comm_split(world, rank == 0 ? -1 : 5, 0, &none), IVY_OK) << ivy_last_error();
    EXPECT_EQ(none == nullptr, rank == 0);
    if (none != nullptr) {
      EXPECT_EQ(sum_of_ones(none), static_cast<float>(size - 1));
    }

    ivy_comm* alone = nullptr;
    ASSERT_EQ(ivy_comm_split(reversed, rank, 0, &alone), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_comm_size(alone), 1);
    EXPECT_EQ(sum_of_ones(alone), 1.0F);

    const std::int32_t ends[] = {size - 1, 0};
    ivy_comm* pair = nullptr;
    ASSERT_EQ(ivy_comm_group(world, ends, 2, &pair), IVY_OK) << ivy_last_error();
    EXPECT_EQ(pair != nullptr, rank == 0 || rank == size - 1);
    if (pair != nullptr) {
      EXPECT_EQ(ivy_comm_rank(pair), rank == 0 ? 1 : 0);
      EXPECT_EQ(sum_of_ones(pair), 2.0F);
      EXPECT_EQ(ivy_comm_free(pair), IVY_OK);
    }
    EXPECT_EQ(sum_of_ones(world), static_cast<float>(size));
  }));
}

// Limits the size of files and of shared memory that this process can create to a few pages.
void forbid_memory() {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {65'536, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

void allow_memory() {
  const rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// If one host lacks memory, every rank gets the error, and the parent communicator stays usable.
TEST(GroupTest, ReportsMissingMemoryOfOneHostOnEveryRank) {
  for (const Hosts& hosts : {one_host(3), Hosts{2, 2}, Hosts{1, 3}, Hosts{2, 1, 2}}) {
    SCOPED_TRACE(hosts_text(hosts));
    expect_ok(run_world(hosts, [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      // All ranks of the last host, because any of them may create the memory.
      const bool lacks = ivy_comm_node_rank(world) == ivy_comm_node_count(world) - 1;
      if (lacks) forbid_memory();
      ivy_comm* group = nullptr;
      EXPECT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_RESOURCE_EXHAUSTED);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("shared memory"), std::string::npos) << text;
      EXPECT_EQ(group, nullptr);
      const std::int32_t ends[] = {0, ivy_comm_size(world) - 1};
      const int code = ivy_comm_group(world, ends, 2, &group);
      // On two hosts, each rank is alone on its host and needs no memory.
      EXPECT_EQ(code, ivy_comm_node_count(world) == 1 ? IVY_RESOURCE_EXHAUSTED : IVY_OK);
      EXPECT_EQ(sum_of_ones(world), static_cast<float>(ivy_comm_size(world)));
      if (lacks) allow_memory();
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      EXPECT_EQ(sum_of_ones(group), static_cast<float>(ivy_comm_size(world)));
    }));
    if (HasFailure()) return;
  }
}

// Other processes cannot open the descriptors of some workers, such as those of one that has
// changed its user. Their host shares memory under a name, the other hosts do not.
TEST(GroupTest, OneHostCanShareMemoryUnderAName) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const Hosts& hosts : {one_host(3), Hosts{2, 2}, Hosts{1, 3}, Hosts{3, 2}}) {
    SCOPED_TRACE(hosts_text(hosts));
    expect_ok(run_world(hosts, [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      if (ivy_comm_node_rank(world) == ivy_comm_node_count(world) - 1) {
        constexpr uid_t kNobody = 65'534;
        ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
        ASSERT_EQ(prctl(PR_GET_DUMPABLE), 0);
      }
      for (int turn = 0; turn < 2; ++turn) {
        ivy_comm* group = nullptr;
        ASSERT_EQ(ivy_comm_split(world, 0, -rank, &group), IVY_OK) << ivy_last_error();
        EXPECT_EQ(sum_of_ones(group), static_cast<float>(ivy_comm_size(world)));
        EXPECT_EQ(sum_of_ones(world), static_cast<float>(ivy_comm_size(world)));
      }
    }));
    if (HasFailure()) return;
  }
}

// ---- Blamed ranks ------------------------------------------------------------------------------

// In a group whose ranks have other numbers in the job. The mismatches are detected by the two
// sides of a connection, by the store, or in the memory of one host.
TEST_P(WorldsTest, BlamesTheWorldRankForAMismatchInAGroup) {
  const int size = rank_count(GetParam());
  using Call = std::function<int(ivy_comm*, int rank, float* send, float* receive)>;
  const Call calls[] = {
      [](ivy_comm* group, int rank, float* send, float* receive) {
        return rank == 0 ? ivy_barrier(group, nullptr)
                         : ivy_all_reduce(group, send, receive, 3, IVY_F32, IVY_SUM, nullptr);
      },
      // Each rank waits for the other.
      [](ivy_comm* group, int rank, float* send, float*) {
        return ivy_broadcast(group, send, 3, IVY_F32, 1 - rank, nullptr);
      },
      [](ivy_comm* group, int rank, float* send, float* receive) {
        const std::size_t counts[] = {2, 3};
        return ivy_gather_v(group, send, rank == 0 ? 2 : 4, receive, counts, nullptr, IVY_F32, 0,
                            nullptr);
      },
      [](ivy_comm* group, int rank, float* send, float* receive) {
        const std::size_t counts[] = {2, 3};
        return ivy_scatter_v(group, send, counts, nullptr, receive, rank == 0 ? 2 : 4, IVY_F32, 0,
                             nullptr);
      },
      [](ivy_comm* group, int rank, float* send, float* receive) {
        const std::size_t sent[] = {2, 2};
        const std::size_t received[] = {2, rank == 0 ? std::size_t{5} : std::size_t{2}};
        const std::size_t swapped[] = {received[1 - rank], received[rank]};
        return ivy_all_to_all_v(group, send, sent, nullptr, receive, rank == 0 ? received : swapped,
                                nullptr, IVY_F32, nullptr);
      }};
  expect_ok(run_world(GetParam(), [&](int) {
    const World world(seconds(10));
    ASSERT_TRUE(world);
    float send[16] = {};
    float receive[16] = {};
    std::size_t turn = 0;
    for (const Call& call : calls) {
      SCOPED_TRACE(turn++);
      const std::int32_t ranks[] = {size - 1, size - 2};
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_group(world, ranks, 2, &group), IVY_OK) << ivy_last_error();
      if (group == nullptr) continue;
      int code = call(group, ivy_comm_rank(group), send, receive);
      if (code == IVY_OK) code = ivy_barrier(group, nullptr);
      const std::string text = ivy_last_error();
      EXPECT_EQ(code, IVY_ABORTED) << text;
      const ivy_failure failure = last_failure();
      EXPECT_TRUE(failure.rank == size - 1 || failure.rank == size - 2) << failure.rank << text;
      EXPECT_STRNE(failure.host, "") << text;
      EXPECT_STRNE(failure.operation, "") << text;
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

// Runs work on several groups at the same time and waits for it in another order.
TEST_P(WorldsTest, RunsWorkOnSeveralGroupsAtOnce) {
  constexpr std::size_t kGroups = 3;
  constexpr std::size_t kRounds = 20;
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    ivy_comm* groups[kGroups] = {};
    for (std::size_t g = 0; g < kGroups; ++g) {
      ASSERT_EQ(ivy_comm_split(world, 0, g == 1 ? -rank : rank, &groups[g]), IVY_OK);
    }
    std::vector<std::vector<float>> buffers(kGroups * kRounds);
    std::vector<ivy_work*> works(buffers.size());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const ivy_call call = call_for_work(&works[i]);
      // Every rank starts with another group.
      const std::size_t g = (i + static_cast<std::size_t>(rank)) % kGroups;
      const std::size_t round = i / kGroups;
      buffers[i].assign(1 + round * 997, static_cast<float>(g + round));
      ASSERT_EQ(ivy_all_reduce(groups[g], IVY_IN_PLACE, buffers[i].data(), buffers[i].size(),
                               IVY_F32, IVY_SUM, &call),
                IVY_OK)
          << ivy_last_error();
    }
    for (std::size_t i = buffers.size(); i-- > 0;) {
      ASSERT_EQ(ivy_work_wait(works[i], -1), IVY_OK) << ivy_last_error();
      const std::size_t g = (i + static_cast<std::size_t>(rank)) % kGroups;
      const auto wanted = static_cast<float>((g + i / kGroups) * static_cast<std::size_t>(size));
      EXPECT_EQ(buffers[i].front(), wanted);
      EXPECT_EQ(buffers[i].back(), wanted);
      int done = 0;
      EXPECT_EQ(ivy_work_test(works[i], &done), IVY_OK);
      EXPECT_EQ(done, 1);
      double queued = -1;
      double ran = -1;
      EXPECT_EQ(ivy_work_timing(works[i], &queued, &ran), IVY_OK);
      EXPECT_GE(queued, 0);
      EXPECT_GT(ran, 0);
      EXPECT_EQ(ivy_work_free(works[i]), IVY_OK);
    }
  }));
}

TEST(WorkTest, WaitCanTimeOutBeforeTheOperationEnds) {
  Shared<std::atomic<bool>> may_come;
  expect_ok(run_world(one_host(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    if (rank == 1) {
      EXPECT_TRUE(ivy::test::eventually([&] { return may_come->load(); }, seconds(20)));
      EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      return;
    }
    ivy_work* work = nullptr;
    const ivy_call call = call_for_work(&work);
    ASSERT_EQ(ivy_barrier(world, &call), IVY_OK);
    int done = 1;
    EXPECT_EQ(ivy_work_test(work, &done), IVY_OK);
    EXPECT_EQ(done, 0);
    EXPECT_EQ(ivy_work_wait(work, 20), IVY_DEADLINE_EXCEEDED);
    *may_come = true;
    EXPECT_EQ(ivy_work_wait(work, -1), IVY_OK) << ivy_last_error();
    EXPECT_EQ(ivy_work_free(work), IVY_OK);
  }));
}

// ---- Messages ----------------------------------------------------------------------------------

TEST_P(WorldsTest, MessagesArriveByTagAndInOrder) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    // All ranks send first. The tags are received in another order.
    int number = 0;
    for (const int tag : {7, 8, 7}) {
      ++number;
      ASSERT_EQ(ivy_send(world, &number, 1, IVY_I32, next, tag, nullptr), IVY_OK)
          << ivy_last_error();
    }
    int got = 0;
    ivy_message message = {};
    message.struct_bytes = sizeof message;
    ASSERT_EQ(ivy_recv(world, &got, 1, IVY_I32, previous, 8, &message, nullptr), IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(got, 2);
    EXPECT_EQ(message.source, previous);
    EXPECT_EQ(message.bytes, 4U);
    ASSERT_EQ(ivy_recv(world, &got, 1, IVY_I32, IVY_ANY_SOURCE, IVY_ANY_TAG, &message, nullptr), 0);
    EXPECT_EQ(got, 1);
    EXPECT_EQ(message.tag, 7);
    ASSERT_EQ(ivy_recv(world, &got, 1, IVY_I32, previous, 7, nullptr, nullptr), IVY_OK);
    EXPECT_EQ(got, 3);
    // To itself.
    ASSERT_EQ(ivy_sendrecv(world, &rank, 1, rank, 1, &got, 1, rank, 1, IVY_I32, nullptr, nullptr),
              0)
        << ivy_last_error();
    EXPECT_EQ(got, rank);
    // Large messages in both directions at the same time.
    std::vector<std::uint64_t> large(1 << 20, static_cast<std::uint64_t>(rank));
    std::vector<std::uint64_t> received(large.size());
    ASSERT_EQ(ivy_sendrecv(world, large.data(), large.size(), next, 3, received.data(),
                           received.size(), previous, 3, IVY_U64, nullptr, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(received.front(), static_cast<std::uint64_t>(previous));
    EXPECT_EQ(received.back(), static_cast<std::uint64_t>(previous));
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

// No rank receives them, and every rank has sent some: finalize must not wait for them.
TEST_P(WorldsTest, UnreceivedMessagesBlockNoRank) {
  expect_ok(run_world(GetParam(), [](int rank) {
    std::int64_t begun = 0;
    {
      const World world;
      ASSERT_TRUE(world);
      for (int peer = 0; peer < ivy_comm_size(world); ++peer) {
        if (peer == rank) continue;
        ASSERT_EQ(ivy_send(world, &rank, 1, IVY_I32, peer, 0, nullptr), IVY_OK) << ivy_last_error();
      }
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      begun = monotonic_ms();
    }
    EXPECT_LT(monotonic_ms() - begun, scaled_time(seconds(3)).count());
  }));
}

TEST_P(WorldsTest, ReportsBothSizesOfAMessageLongerThanTheBuffer) {
  expect_ok(run_world(GetParam(), [](int rank) {
    const World world;
    ASSERT_TRUE(world);
    float values[6] = {};
    if (rank == 0) {
      ASSERT_EQ(ivy_send(world, values, 6, IVY_F32, 1, 0, nullptr), IVY_OK) << ivy_last_error();
    }
    if (rank != 1) return;
    EXPECT_NE(ivy_recv(world, values, 5, IVY_F32, 0, 0, nullptr, nullptr), IVY_OK);
    const std::string text = ivy_last_error();
    EXPECT_NE(text.find("6 f32"), std::string::npos) << text;
    EXPECT_NE(text.find("5 f32"), std::string::npos) << text;
  }));
}

}  // namespace
}  // namespace ivy::comm::test
