// SPDX-License-Identifier: Apache-2.0
// A hanging store (a stopped process) delays neither timeouts nor aborts.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// Returns the process of the test's store.
pid_t store_process() { return static_cast<pid_t>(std::atoi(std::getenv("IVY_TEST_STORE_PID"))); }

struct Board {
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_over{false};
};

TEST(HungStoreTest, KeepsTheTimeout) {
  Shared<Board> board;
  expect_ok(run_world(host_each(2), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 1) {
      EXPECT_TRUE(ivy::test::eventually([&] { return board->is_over.load(); }, seconds(30)));
      return;
    }
    ASSERT_EQ(kill(store_process(), SIGSTOP), 0);
    const std::int64_t begun = monotonic_ms();
    const ivy_call call = call_with_timeout(milliseconds(600));
    EXPECT_EQ(ivy_barrier(world, &call), IVY_DEADLINE_EXCEEDED) << ivy_last_error();
    const std::int64_t took = monotonic_ms() - begun;
    EXPECT_LT(took, 600 + scaled_time(milliseconds(1500)).count());
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
    kill(store_process(), SIGCONT);
    board->is_over = true;
  }));
}

TEST(HungStoreTest, WakesRanksImmediatelyAfterAnAbort) {
  Shared<Board> board;
  expect_ok(run_world(Hosts{2, 1}, [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 2) {
      EXPECT_TRUE(ivy::test::eventually([&] { return board->is_over.load(); }, seconds(30)));
      return;
    }
    std::int64_t aborted_ms = 0;
    std::thread other;
    if (rank == 0) {
      ASSERT_EQ(kill(store_process(), SIGSTOP), 0);
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(400));  // All ranks wait by then.
        aborted_ms = monotonic_ms();
        EXPECT_EQ(ivy_comm_abort(world, "now"), IVY_OK);
      });
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_CANCELLED) << ivy_last_error();
    const std::int64_t woken_ms = monotonic_ms();
    if (rank != 0) return;
    other.join();
    // A pending request to the store may still take up to its limit of 250 ms.
    EXPECT_LT(woken_ms - aborted_ms, scaled_time(milliseconds(400)).count());
    kill(store_process(), SIGCONT);
    board->is_over = true;
  }));
}

// Calls in which a rank of the aborting host waits for a rank of another host.
struct Wait {
  const char* name;
  int (*call)(ivy_comm* comm);
};

const Wait kWaits[] = {
    {"barrier", [](ivy_comm* comm) { return ivy_barrier(comm, nullptr); }},
    {"all_reduce, as work",
     [](ivy_comm* comm) {
       float sum = 1;
       ivy_work* work = nullptr;
       const ivy_call call = call_for_work(&work);
       int code = ivy_all_reduce(comm, IVY_IN_PLACE, &sum, 1, IVY_F32, IVY_SUM, &call);
       if (code == IVY_OK) code = ivy_work_wait(work, -1);
       ivy_work_free(work);
       return code;
     }},
    {"recv",
     [](ivy_comm* comm) {
       float got = 0;
       return ivy_recv(comm, &got, 1, IVY_F32, 2, 0, nullptr, nullptr);
     }},
    {"recv from any",
     [](ivy_comm* comm) {
       float got = 0;
       return ivy_recv(comm, &got, 1, IVY_F32, IVY_ANY_SOURCE, 0, nullptr, nullptr);
     }},
};

struct AbortBoard {
  std::atomic<int> entered{0};
  std::atomic<std::int64_t> called_ms{0};
  std::atomic<std::int64_t> took_ms{0};           // The duration of the abort call.
  std::atomic<std::int64_t> reported_ms[2] = {};  // By rank.
  std::atomic<bool> is_over{false};
};

// Ranks 0 and 1 of one host wait, and a thread of rank 0 aborts.
void abort_beside_a_hung_store(const Wait& wait, int rank, AbortBoard& board) {
  const World world;
  ASSERT_TRUE(world);
  ivy_comm* group = nullptr;
  ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
  ASSERT_EQ(ivy_barrier(group, nullptr), IVY_OK) << ivy_last_error();
  if (rank == 2) {
    EXPECT_TRUE(ivy::test::eventually([&] { return board.is_over.load(); }, seconds(30)));
    return;
  }
  std::thread aborting;
  if (rank == 0) {
    aborting = std::thread([&] {
      EXPECT_TRUE(ivy::test::eventually([&] { return board.entered == 2; }, seconds(10)));
      // Both ranks wait by then, but not long enough to query the store.
      std::this_thread::sleep_for(milliseconds(20));
      ASSERT_EQ(kill(store_process(), SIGSTOP), 0);
      board.called_ms = monotonic_ms();
      EXPECT_EQ(ivy_comm_abort(group, "now"), IVY_OK);
      board.took_ms = monotonic_ms() - board.called_ms;
      kill(store_process(), SIGCONT);
      board.is_over = true;
    });
  }
  ++board.entered;
  EXPECT_EQ(wait.call(group), IVY_CANCELLED) << ivy_last_error();
  board.reported_ms[rank] = monotonic_ms();
  if (aborting.joinable()) aborting.join();
}

// Ranks that can be woken without the store are woken first, even if the store is slow.
TEST(HungStoreTest, WakesItsHostBeforeQueryingTheStore) {
  constexpr std::size_t kTurns = 3;
  for (const Wait& wait : kWaits) {
    SCOPED_TRACE(wait.name);
    std::vector<std::int64_t> late[2];
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      Shared<AbortBoard> board;
      expect_ok(
          run_world(Hosts{2, 1}, [&](int rank) { abort_beside_a_hung_store(wait, rank, *board); }));
      if (HasFailure()) return;
      // Otherwise the store was not queried, and the test shows nothing.
      EXPECT_GE(board->took_ms, 200);
      for (const int rank : {0, 1}) {
        late[rank].push_back(board->reported_ms[rank] - board->called_ms);
      }
    }
    // Rank 1 is woken immediately, and stores the abort itself before it closes its connections. A
    // hanging store delays that by 250 ms.
    const milliseconds allowed[2] = {milliseconds(50), milliseconds(250 + 50)};
    for (const int rank : {0, 1}) {
      std::sort(late[rank].begin(), late[rank].end());
      EXPECT_LT(late[rank][kTurns / 2], scaled_time(allowed[rank]).count()) << "rank " << rank;
    }
  }
}

struct TwoFindings {
  std::atomic<int> entered{0};
  std::atomic<bool> is_over{false};
};

// A thread of rank 0 times out and asks the hanging store for earlier failures, while another of
// its threads aborts.
TEST(HungStoreTest, AnAbortDoesNotWaitForTheStoreQueryOfATimeout) {
  Shared<TwoFindings> board;
  expect_ok(run_world(Hosts{2, 1}, [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    if (rank == 2) {
      EXPECT_TRUE(ivy::test::eventually([&] { return board->is_over.load(); }, seconds(30)));
      return;
    }
    float got = 0;
    if (rank == 1) {
      ++board->entered;
      EXPECT_EQ(ivy_recv(world, &got, 1, IVY_F32, 2, 0, nullptr, nullptr), IVY_CANCELLED)
          << ivy_last_error();
      return;
    }
    EXPECT_TRUE(ivy::test::eventually([&] { return board->entered == 1; }, seconds(10)));
    ASSERT_EQ(kill(store_process(), SIGSTOP), 0);
    std::thread aborting([&] {
      std::this_thread::sleep_for(milliseconds(60 + 60));
      EXPECT_EQ(ivy_comm_abort(world, "now"), IVY_OK);
    });
    const ivy_call call = call_with_timeout(milliseconds(60));
    EXPECT_NE(ivy_recv(world, &got, 1, IVY_F32, 2, 0, nullptr, &call), IVY_OK);
    aborting.join();
    kill(store_process(), SIGCONT);
    board->is_over = true;
  }));
}

}  // namespace
}  // namespace ivy::comm::test
