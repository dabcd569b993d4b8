// A store that hangs (its process is stopped) delays neither a timeout nor an abort.
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// The store of the test's world.
pid_t store_process() { return static_cast<pid_t>(std::atoi(std::getenv("IVY_TEST_STORE_PID"))); }

struct Board {
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_over{false};
};

TEST(HungStoreTest, TheTimeoutIsKept) {
  Shared<Board> board;
  expect_well(run_world(host_each(2), [&](int rank) {
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
    EXPECT_LT(took, 600 + stretched(milliseconds(1500)).count());
    EXPECT_EQ(last_failure().rank, 1) << ivy_last_error();
    kill(store_process(), SIGCONT);
    board->is_over = true;
  }));
}

TEST(HungStoreTest, AnAbortWakesAtOnce) {
  Shared<Board> board;
  expect_well(run_world(Hosts{2, 1}, [&](int rank) {
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
        std::this_thread::sleep_for(milliseconds(400));  // So that all of it waits.
        aborted_ms = monotonic_ms();
        EXPECT_EQ(ivy_comm_abort(world, "now"), IVY_OK);
      });
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_CANCELLED) << ivy_last_error();
    const std::int64_t woken_ms = monotonic_ms();
    if (rank != 0) return;
    other.join();
    // Of a question to the store that was under way its limit, 250 ms, was left.
    EXPECT_LT(woken_ms - aborted_ms, stretched(milliseconds(400)).count());
    kill(store_process(), SIGCONT);
    board->is_over = true;
  }));
}

}  // namespace
}  // namespace ivy::comm::test
