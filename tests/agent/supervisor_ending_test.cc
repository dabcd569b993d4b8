// SPDX-License-Identifier: Apache-2.0
// Endings: stop, grace, KILL, and that no process of the job is left, whichever process is killed
// first. Method: a real ivy-node; FakeLauncher's destructor fails the test if a process or the job
// directory is left.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "proto/os/user_directories.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_launcher.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr char kStubborn[] = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.05; done";
// Leaves a process behind that is in another session, is not a descendant of the job and ignores
// TERM. Continues when that process is ready.
constexpr char kEscaper[] =
    "(setsid sh -c 'trap \"\" TERM; : > $IVY_TOKEN_FILE.up; exec sleep 600' "
    ">/dev/null 2>&1 </dev/null &); while ! test -e $IVY_TOKEN_FILE.up; do sleep 0.01; done; "
    "echo ready; ";

class SupervisorEndingTest : public testing::Test {
 protected:
  static void start(FakeLauncher& launcher, const std::string& script, int count = 1) {
    launcher.send_hello();
    launcher.start(launcher.shell_plan(count, script));
    ASSERT_TRUE(launcher.wait([&] {
      for (int rank = 0; rank < count; ++rank)
        if (launcher.output(static_cast<std::uint32_t>(rank)) != "ready\n") return false;
      return true;
    }));
  }
  // Starts the last generation.
  static void start_last(FakeLauncher& launcher, const std::string& script) {
    Command command;
    *command.mutable_start()->mutable_plan() = launcher.shell_plan(1, script);
    command.mutable_start()->set_is_last(true);
    launcher.send(command);
  }
  static bool reported(FakeLauncher& launcher, milliseconds deadline) {
    return launcher.wait([&] { return launcher.report() != nullptr; }, deadline);
  }
  static void finish(FakeLauncher& launcher) {
    launcher.finish();
    EXPECT_EQ(launcher.wait_for_node(), 0);
  }

  LeakGuard leaks_;
};

TEST_F(SupervisorEndingTest, TerminatesWorkersWithinTheGrace) {
  FakeLauncher launcher;
  start(launcher, "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.02; done", 2);
  launcher.stop(10'000);
  ASSERT_TRUE(reported(launcher, seconds(5)));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(launcher.exited(rank)->code(), 4);
    EXPECT_TRUE(launcher.exited(rank)->after_stop());
    EXPECT_EQ(launcher.output(rank), "ready\nbye\n");
  }
  EXPECT_TRUE(launcher.report()->clean());
  finish(launcher);
}

TEST_F(SupervisorEndingTest, KillsAWorkerThatIgnoresTermAfterTheGrace) {
  FakeLauncher launcher;
  start(launcher, kStubborn);
  const Clock::time_point begin = Clock::now();
  launcher.stop(600);
  ASSERT_TRUE(reported(launcher, seconds(5)));
  EXPECT_GE(Clock::now() - begin, milliseconds(590));
  EXPECT_EQ(launcher.exited(0)->signal(), SIGKILL);
  EXPECT_FALSE(launcher.exited(0)->out_of_memory());
  EXPECT_TRUE(launcher.report()->clean());
  finish(launcher);
}

TEST_F(SupervisorEndingTest, LetsALaterStopShortenTheGrace) {
  FakeLauncher launcher;
  start(launcher, kStubborn);
  launcher.stop(600'000);
  launcher.stop(0);
  EXPECT_TRUE(reported(launcher, seconds(3)));
  finish(launcher);
}

TEST_F(SupervisorEndingTest, WakesAStoppedWorkerToTerminateIt) {
  FakeLauncher launcher;
  start(launcher, "trap 'exit 4' TERM; echo ready; kill -STOP $$; while :; do sleep 0.02; done");
  // A stop that arrived before the worker stopped itself would test nothing.
  ASSERT_TRUE(launcher.wait([&] { return launcher.worker_state(0) == "T"; }));
  launcher.stop(30'000);
  ASSERT_TRUE(reported(launcher, seconds(5)));
  EXPECT_EQ(launcher.exited(0)->code(), 4);
  finish(launcher);
}

TEST_F(SupervisorEndingTest, DoesNotWaitForAGrandchildThatHoldsThePipe) {
  FakeLauncher launcher;
  // The second worker keeps the job running, so that only the drain time can close the first one's
  // pipes.
  start(launcher, "echo ready; if [ $RANK = 0 ]; then (setsid sleep 600 &); exit 6; fi; sleep 600",
        2);
  ASSERT_TRUE(launcher.wait([&] { return launcher.exited(0) != nullptr; }, seconds(1)));
  EXPECT_EQ(launcher.exited(0)->code(), 6);
  EXPECT_FALSE(launcher.output_ended(0));
  EXPECT_TRUE(launcher.wait([&] { return launcher.output_ended(0) && launcher.output_ended(0, 2); },
                            seconds(4)));
  EXPECT_EQ(launcher.exited(1), nullptr);
  launcher.stop(0);
  ASSERT_TRUE(reported(launcher, seconds(3)));
  finish(launcher);
}

TEST_F(SupervisorEndingTest, TerminatesProcessesThatOutliveTheWorkers) {
  FakeLauncher launcher;
  const Clock::time_point begin = Clock::now();
  start(launcher, std::string(kEscaper) + "exit 0");
  ASSERT_TRUE(reported(launcher, seconds(6)));
  EXPECT_GE(Clock::now() - begin, seconds(2));
  EXPECT_EQ(launcher.exited(0)->code(), 0);
  EXPECT_FALSE(launcher.exited(0)->after_stop());
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_TRUE(launcher.job_processes().empty());
  finish(launcher);
}

TEST_F(SupervisorEndingTest, ReportsImmediatelyWhenNothingWasStarted) {
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.stop(30'000);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  EXPECT_TRUE(launcher.report()->clean());
  finish(launcher);
}

// On the launcher's own host no Finish is needed after the last generation.
TEST_F(SupervisorEndingTest, ExitsByItselfAfterTheLastStartOnALocalTransport) {
  FakeLauncher launcher;
  launcher.send_hello();
  start_last(launcher, "exit 3");
  EXPECT_EQ(launcher.wait_for_node(), 0);
  ASSERT_NE(launcher.report(), nullptr);
  EXPECT_TRUE(launcher.report()->clean());
  ASSERT_NE(launcher.exited(0), nullptr);
  EXPECT_EQ(launcher.exited(0)->code(), 3);
}

// The report may have to be sent again.
TEST_F(SupervisorEndingTest, WaitsForFinishAfterTheLastStartThroughARelay) {
  FakeLauncher::Options options;
  options.peer = LinkPeer::kRelay;
  FakeLauncher launcher(options);
  launcher.send_hello();
  start_last(launcher, "exit 3");
  ASSERT_TRUE(reported(launcher, seconds(5)));
  EXPECT_FALSE(launcher.wait_for_node(milliseconds(300)).has_value());
  finish(launcher);
}

TEST_F(SupervisorEndingTest, FinishesWithoutAStart) {
  FakeLauncher launcher;
  launcher.send_hello();
  finish(launcher);
}

TEST_F(SupervisorEndingTest, StopsOnItsOwnTermSignal) {
  FakeLauncher launcher;
  start(launcher, "echo ready; exec sleep 600");
  ASSERT_EQ(kill(launcher.supervisor_pid(), SIGTERM), 0);
  ASSERT_TRUE(reported(launcher, seconds(5)));
  EXPECT_EQ(launcher.exited(0)->signal(), SIGTERM);
  EXPECT_NE(launcher.report()->reason(), "");
  finish(launcher);
}

// With Hello.notice_ms, the workers run on after a TERM to the supervisor.
class SupervisorNoticeTest : public SupervisorEndingTest {
 protected:
  std::string start_with_notice(FakeLauncher& launcher, std::uint32_t notice_ms) {
    Hello hello = launcher.hello();
    hello.set_notice_ms(notice_ms);
    std::string directory = launcher.send_hello(hello).job_directory();
    launcher.start(launcher.shell_plan(1, "echo ready; exec sleep 600"));
    EXPECT_TRUE(launcher.wait([&] { return launcher.output(0) == "ready\n"; }));
    return directory;
  }
  static const HostNotice* notice(const FakeLauncher& launcher) {
    for (const Event& event : launcher.events())
      if (event.has_host_notice()) return &event.host_notice();
    return nullptr;
  }
  static void terminate(const FakeLauncher& launcher) {
    ASSERT_EQ(kill(launcher.supervisor_pid(), SIGTERM), 0);
  }
};

TEST_F(SupervisorNoticeTest, ReportsATermAndStopsWhenTheTimeIsUp) {
  FakeLauncher launcher;
  start_with_notice(launcher, 1'500);
  terminate(launcher);
  ASSERT_TRUE(launcher.wait([&] { return notice(launcher) != nullptr; }));
  EXPECT_EQ(notice(launcher)->source(), "SIGTERM to its supervisor");
  EXPECT_GT(notice(launcher)->deadline_ns(), 0u);
  launcher.serve(milliseconds(700));
  EXPECT_EQ(launcher.exited(0), nullptr);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  EXPECT_EQ(launcher.report()->reason(), "the supervisor received SIGTERM");
  finish(launcher);
}

TEST_F(SupervisorNoticeTest, StopsOnASecondTerm) {
  FakeLauncher launcher;
  start_with_notice(launcher, 600'000);
  terminate(launcher);
  ASSERT_TRUE(launcher.wait([&] { return notice(launcher) != nullptr; }));
  terminate(launcher);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  finish(launcher);
}

TEST_F(SupervisorNoticeTest, StopsOnATermOfIvyctlOrAnAgent) {
  FakeLauncher launcher;
  mark_stop(start_with_notice(launcher, 600'000));
  terminate(launcher);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  EXPECT_EQ(notice(launcher), nullptr);
  finish(launcher);
}

TEST_F(SupervisorNoticeTest, FollowsTheLauncherThatStopsEarlier) {
  FakeLauncher launcher;
  start_with_notice(launcher, 600'000);
  terminate(launcher);
  ASSERT_TRUE(launcher.wait([&] { return notice(launcher) != nullptr; }));
  launcher.stop(1'000);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  EXPECT_EQ(launcher.report()->reason(), "");
  finish(launcher);
}

// The launcher has continued without this host, and no longer talks to it.
TEST_F(SupervisorNoticeTest, ExitsWithoutFinishWhenTheTimeIsUp) {
  FakeLauncher launcher;
  start_with_notice(launcher, 2'000);
  terminate(launcher);
  launcher.stop(1'000);
  ASSERT_TRUE(reported(launcher, seconds(10)));
  EXPECT_EQ(launcher.wait_for_node(), 0);
}

TEST_F(SupervisorEndingTest, LeavesNothingWhenTheSupervisorIsKilled) {
  FakeLauncher launcher;
  start(launcher, std::string(kEscaper) + "trap '' TERM; while :; do sleep 0.05; done");
  const pid_t supervisor = launcher.supervisor_pid();
  ASSERT_GT(supervisor, 0);
  ASSERT_EQ(kill(supervisor, SIGKILL), 0);
  EXPECT_TRUE(launcher.wait([&] { return launcher.job_processes().empty(); }, seconds(3)));
  EXPECT_EQ(launcher.wait_for_node(), 128 + SIGKILL);
}

TEST_F(SupervisorEndingTest, LeavesNothingWhenTheWardenIsKilled) {
  FakeLauncher launcher;
  start(launcher, kStubborn, 2);
  ASSERT_EQ(kill(launcher.node_pid(), SIGKILL), 0);
  ASSERT_TRUE(reported(launcher, seconds(3)));
  EXPECT_EQ(launcher.report()->reason(), "warden lost");
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_EQ(launcher.exited(0)->signal(), SIGKILL);
  EXPECT_TRUE(launcher.job_processes().empty());
  launcher.finish();
  EXPECT_TRUE(launcher.wait([&] { return launcher.link_ended(); }));
  EXPECT_EQ(launcher.wait_for_node(), 128 + SIGKILL);
}

}  // namespace
}  // namespace ivy::test
