// SPDX-License-Identifier: Apache-2.0
// Blocking calls that their callers interrupt: ivy_call.interrupt.
#include <thread>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// Lets the call continue a few times and then returns `answer`.
struct CheckCount {
  int left = 2;
  int answer = 1;
  int times = 0;
  ivy_comm* comm = nullptr;  // If not null, tries an operation on it first.
  int nested_code = IVY_OK;
};

int ask(void* context) {
  CheckCount& checks = *static_cast<CheckCount*>(context);
  ++checks.times;
  if (checks.comm != nullptr) checks.nested_code = ivy_barrier(checks.comm, nullptr);
  return --checks.left <= 0 ? checks.answer : 0;
}

ivy_call call_with_check(CheckCount& checks) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.interrupt = &ask;
  call.interrupt_context = &checks;
  return call;
}

class Interrupts : public testing::TestWithParam<Hosts> {};

TEST_P(Interrupts, EndAWaitingCallOnEveryRank) {
  const Shared<std::atomic<bool>> has_ended;
  expect_ok(run_world(GetParam(), [&](int rank) {
    World world;
    CheckCount checks;
    const ivy_call call = call_with_check(checks);
    if (rank == 0) {
      EXPECT_EQ(ivy_barrier(world, &call), IVY_CANCELLED);
      EXPECT_EQ(checks.times, 2);
      has_ended->store(true);
    } else {
      while (!has_ended->load()) std::this_thread::sleep_for(milliseconds(1));
    }
    // Messages that rank 0 sent earlier may let a rank of another host finish the first barrier.
    if (ivy_barrier(world, nullptr) == IVY_OK) {
      EXPECT_EQ(ivy_barrier(world, nullptr), IVY_CANCELLED);
    }
    EXPECT_EQ(last_failure().rank, 0);
    EXPECT_NE(std::string(ivy_last_error()).find("interrupted"), std::string::npos)
        << ivy_last_error();
  }));
}

TEST_P(Interrupts, LetACallContinue) {
  const Shared<std::atomic<int>> times;
  expect_ok(run_world(GetParam(), [&](int rank) {
    World world;
    CheckCount checks;
    checks.answer = 0;
    checks.comm = world;
    const ivy_call call = call_with_check(checks);
    // The others arrive after the first call of the interrupt.
    while (rank != 0 && times->load() == 0) std::this_thread::sleep_for(milliseconds(1));
    std::thread watch;
    if (rank == 0) {
      watch = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(300));
        times->store(1);
      });
    }
    EXPECT_EQ(ivy_barrier(world, &call), IVY_OK) << ivy_last_error();
    if (watch.joinable()) watch.join();
    if (rank == 0) {
      EXPECT_GT(checks.times, 0);
      EXPECT_EQ(checks.nested_code, IVY_FAILED_PRECONDITION);
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  }));
}

TEST_P(Interrupts, EndASendThatNoRankReceives) {
  const Shared<std::atomic<bool>> has_ended;
  expect_ok(run_world(GetParam(), [&](int rank) {
    World world;
    CheckCount checks;
    const ivy_call call = call_with_check(checks);
    const std::vector<double> message(std::size_t{1} << 23);
    if (rank == 0) {
      EXPECT_EQ(ivy_send(world, message.data(), message.size(), IVY_F64, 1, 0, &call),
                IVY_CANCELLED);
      has_ended->store(true);
    } else {
      while (!has_ended->load()) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(ivy_barrier(world, nullptr), IVY_CANCELLED);
  }));
}

// The other rank may succeed and have a group that this rank does not have.
TEST_P(Interrupts, EndTheCreationOfAGroup) {
  constexpr int kRounds = 200;
  const Shared<std::atomic<int>> arrived;
  expect_ok(run_world(GetParam(), [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      World world(seconds(10));
      ++*arrived;
      while (*arrived < 2 * (round + 1)) {
      }
      std::thread breaker;
      if (rank == 0) {
        breaker = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(2 * round));
          ivy_comm_abort(world, "now");
        });
      }
      const std::int32_t both[] = {0, 1};
      ivy_comm* group = nullptr;
      if (ivy_comm_group(world, both, 2, &group) == IVY_OK && rank == 0) {
        ivy_comm_abort(group, "now");
      } else if (group != nullptr) {
        const std::int64_t began = monotonic_ms();
        EXPECT_EQ(ivy_barrier(group, nullptr), IVY_CANCELLED) << ivy_last_error();
        EXPECT_LT(monotonic_ms() - began, scaled_time(seconds(5)).count()) << "round " << round;
      }
      if (breaker.joinable()) breaker.join();
      if (testing::Test::HasFailure()) return;
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(, Interrupts, testing::Values(one_host(2), host_each(2)),
                         [](const auto& hosts) { return hosts_text(hosts.param); });

}  // namespace
}  // namespace ivy::comm::test
