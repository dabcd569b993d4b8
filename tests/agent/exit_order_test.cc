// SPDX-License-Identifier: Apache-2.0
// The order in which processes exited, read after all of them have exited.
#include "agent/node/workers/exit_order.h"

#include <gtest/gtest.h>

#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

TEST(ExitOrderTest, OrdersRanksByExitTime) {
  const LeakGuard guard;
  constexpr std::uint32_t kWorkers = 100;  // More than one system call returns.
  std::vector<Running> workers;
  {
    ExitOrder order;
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      workers.push_back(start(request_for("ignore_term")));
      order.watch(workers[i].process.pidfd, i);
    }
    EXPECT_TRUE(order.take().empty()) << "all are running";
    std::vector<std::uint32_t> ended;
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      const std::uint32_t next = (i * 37 + 11) % kWorkers;  // Not in the order of starts.
      ended.push_back(next);
      kill(workers[next].process.pid, SIGKILL);
      pollfd waiting{workers[next].process.pidfd, POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 60'000), 1);
    }
    EXPECT_EQ(order.take(), ended);
    EXPECT_TRUE(order.take().empty()) << "each is returned once";
  }
  for (const Running& worker : workers) EXPECT_EQ(wait_exit(worker.process).signal, SIGKILL);
}

}  // namespace
}  // namespace ivy::test
