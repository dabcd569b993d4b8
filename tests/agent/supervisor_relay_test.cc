// SPDX-License-Identifier: Apache-2.0
// The supervisor behind the real relay: how each of the relay's two endings affects the workers.
// Method: a real ivy-node relay whose standard input and output are the launcher's socket.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/eventually.h"
#include "tests/support/fake_launcher.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SupervisorRelayTest : public testing::Test {
 protected:
  static FakeLauncher::Options through_relay() {
    FakeLauncher::Options options;
    options.way = FakeLauncher::Way::kRelay;
    options.peer = LinkPeer::kRelay;
    return options;
  }
  static void start_sleeper(FakeLauncher& launcher) {
    launcher.send_hello();
    launcher.start(launcher.shell_plan(1, "echo ready; exec sleep 600"));
    ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
  }
  static bool gone(FakeLauncher& launcher, milliseconds deadline) {
    return launcher.wait([&] { return launcher.job_processes().empty(); }, deadline);
  }

  LeakGuard leaks_;
};

TEST_F(SupervisorRelayTest, RunsAJobToItsEnd) {
  FakeLauncher launcher(through_relay());
  launcher.send_hello();
  launcher.start(launcher.shell_plan(2, "seq 1 50000; exit 3"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_EQ(launcher.exited(1)->code(), 3);
  ASSERT_TRUE(launcher.wait([&] { return launcher.output_ended(0) && launcher.output_ended(1); }));
  EXPECT_TRUE(launcher.output(0).ends_with("\n50000\n"));
  launcher.finish();
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorRelayTest, StopsSoonAfterTheLaunchersSideHasEnded) {
  FakeLauncher launcher(through_relay());
  start_sleeper(launcher);
  launcher.half_close();
  EXPECT_TRUE(gone(launcher, seconds(4)));
}

TEST_F(SupervisorRelayTest, StopsSoonAfterTheLauncherHasVanished) {
  FakeLauncher launcher(through_relay());
  start_sleeper(launcher);
  launcher.hang_up();
  EXPECT_TRUE(gone(launcher, seconds(4)));
  EXPECT_TRUE(launcher.wait_for_node().has_value());
}

TEST_F(SupervisorRelayTest, RunsWithoutTheRelayUntilALauncherReattaches) {
  FakeLauncher launcher(through_relay());
  start_sleeper(launcher);
  ASSERT_EQ(kill(launcher.node_pid(), SIGKILL), 0);
  EXPECT_EQ(launcher.wait_for_node(), 128 + SIGKILL);
  launcher.serve(milliseconds(1500));
  EXPECT_FALSE(launcher.job_processes().empty());
  launcher.reattach();
  launcher.send_signal(SIGKILL);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_EQ(launcher.exited(0)->signal(), SIGKILL);
  launcher.finish();
  EXPECT_TRUE(launcher.wait([&] { return launcher.link_ended(); }));
}

}  // namespace
}  // namespace ivy::test
