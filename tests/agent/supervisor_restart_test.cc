// SPDX-License-Identifier: Apache-2.0
// Restarts under the same supervisor: two generations are never mixed, and between them the
// supervisor exits as it does at any time. Method: a real ivy-node; FakeLauncher's destructor fails
// the test if a process or the job directory is left.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "proto/wire/check.pb.h"
#include "proto/wire/stage_codec.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_launcher.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SupervisorRestartTest : public testing::Test {
 protected:
  static void start(FakeLauncher& launcher, const HostPlan& plan, std::uint32_t max_restarts = 3) {
    launcher.send_hello();
    Command command;
    *command.mutable_start()->mutable_plan() = plan;
    command.mutable_start()->set_max_restarts(max_restarts);
    command.mutable_start()->set_last_generation(max_restarts);
    launcher.send(command);
  }

  static void start_again(FakeLauncher& launcher, std::uint32_t generation, bool is_last = false) {
    Command command;
    StartAgain& again = *command.mutable_start_again();
    again.set_generation(generation);
    again.set_is_last(is_last);
    Variable& variable = *again.add_environment();
    variable.set_name("IVY_GENERATION");
    variable.set_value(std::to_string(generation));
    launcher.send(command);
  }

  static const Report* report_of(const FakeLauncher& launcher, std::uint32_t generation) {
    for (const Event& event : launcher.events())
      if (event.has_report() && event.report().generation() == generation) return &event.report();
    return nullptr;
  }

  static bool wait_for_report(FakeLauncher& launcher, std::uint32_t generation) {
    return launcher.wait([&] { return report_of(launcher, generation) != nullptr; });
  }

  // Returns the exits of one generation as (rank, code).
  static std::vector<std::pair<std::uint32_t, int>> exits(const FakeLauncher& launcher,
                                                          std::uint32_t generation) {
    std::vector<std::pair<std::uint32_t, int>> found;
    for (const Event& event : launcher.events())
      if (event.has_exited() && event.exited().generation() == generation)
        found.emplace_back(event.exited().rank(), event.exited().code());
    std::sort(found.begin(), found.end());
    return found;
  }

  static void finish(FakeLauncher& launcher) {
    launcher.finish();
    EXPECT_EQ(launcher.wait_for_node(), 0);
  }

  LeakGuard leaks_;
};

TEST_F(SupervisorRestartTest, RunsTheSameWorkersAgain) {
  FakeLauncher launcher;
  start(launcher,
        launcher.shell_plan(
            2, "echo rank $RANK generation ${IVY_GENERATION:-0}; exit ${IVY_GENERATION:-7}"));
  for (std::uint32_t generation = 0; generation < 3; ++generation) {
    if (generation > 0) start_again(launcher, generation);
    ASSERT_TRUE(wait_for_report(launcher, generation));
    EXPECT_TRUE(report_of(launcher, generation)->clean());
    const int code = generation == 0 ? 7 : static_cast<int>(generation);
    EXPECT_EQ(exits(launcher, generation),
              (std::vector<std::pair<std::uint32_t, int>>{{0, code}, {1, code}}));
    const std::string number = std::to_string(generation);
    EXPECT_EQ(launcher.output(0), "rank 0 generation " + number + "\n");
    EXPECT_EQ(launcher.output(1), "rank 1 generation " + number + "\n");
    EXPECT_TRUE(launcher.output_ended(1, 2));
  }
  finish(launcher);
}

// Sends an order to `ivy-node check`, or the end of its input.
void order_check(FakeLauncher& launcher, const std::string& check_command) {
  CheckOrder order;
  order.mutable_begin()->mutable_hello()->set_working_directory("/tmp");
  order.mutable_begin()->set_limit_ms(60'000);
  order.mutable_begin()->add_commands(check_command);
  Command command;
  command.mutable_task_input()->set_task(TASK_CHECK);
  command.mutable_task_input()->set_bytes(stage::framed(order.SerializeAsString()));
  launcher.send(command);
}

void end_check(FakeLauncher& launcher) {
  Command command;
  command.mutable_task_input()->set_task(TASK_CHECK);
  command.mutable_task_input()->set_end(true);
  launcher.send(command);
}

// Returns what all check processes have sent, and how many of them have exited.
std::pair<std::string, int> output_of_checks(const FakeLauncher& launcher) {
  std::pair<std::string, int> all;
  for (const Event& event : launcher.events()) {
    if (!event.has_task_output() || event.task_output().task() != TASK_CHECK) continue;
    all.first += event.task_output().bytes();
    all.second += event.task_output().ended() ? 1 : 0;
  }
  return all;
}

TEST_F(SupervisorRestartTest, ChecksTheHostBeforeEachGeneration) {
  FakeLauncher launcher;
  for (int run = 1; run <= 2; ++run) {
    const std::string word = "checked" + std::to_string(run);
    // A process in the background is killed with the check.
    order_check(launcher, "setsid sleep 600 & echo " + word);
    ASSERT_TRUE(launcher.wait([&] {
      const std::string sent = output_of_checks(launcher).first;
      return sent.find(word + "\n") != std::string::npos;
    }));
    end_check(launcher);
    ASSERT_TRUE(launcher.wait([&] { return output_of_checks(launcher).second == run; }));
    if (run == 1) {
      start(launcher, launcher.shell_plan(1, "echo up; exit ${IVY_GENERATION:-7}"));
      ASSERT_TRUE(wait_for_report(launcher, 0));
    }
  }
  start_again(launcher, 1);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  EXPECT_TRUE(report_of(launcher, 1)->clean());
  finish(launcher);
}

TEST_F(SupervisorRestartTest, LeavesNothingOfACheckIfTheJobEndsMeanwhile) {
  FakeLauncher launcher;
  launcher.send_hello();
  order_check(launcher, "(setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' &); exec sleep 600");
  ASSERT_TRUE(launcher.wait(
      [&] { return output_of_checks(launcher).first.find("setsid sh") != std::string::npos; }));
  finish(launcher);
}

TEST_F(SupervisorRestartTest, ProvesThatNoProcessIsLeftBeforeItRunsAgain) {
  FakeLauncher launcher;
  // Only the first generation leaves a process behind that ignores TERM.
  start(launcher, launcher.shell_plan(
                      1,
                      "if [ -z \"$IVY_GENERATION\" ]; then "
                      "(setsid sh -c 'trap \"\" TERM; echo up; exec sleep 600' &); sleep 600; fi; "
                      "echo again"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "up\n"; }));
  launcher.stop(200);
  ASSERT_TRUE(wait_for_report(launcher, 0));
  EXPECT_TRUE(launcher.job_processes().empty());
  start_again(launcher, 1);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  EXPECT_EQ(launcher.output(0), "again\n");
  // The stop belonged to the previous generation.
  const auto last = std::find_if(launcher.events().rbegin(), launcher.events().rend(),
                                 [](const Event& event) { return event.has_exited(); });
  EXPECT_EQ(last->exited().generation(), 1u);
  EXPECT_FALSE(last->exited().after_stop());
  finish(launcher);
}

TEST_F(SupervisorRestartTest, StopsTheNextGenerationAsItStoppedTheFirst) {
  FakeLauncher launcher;
  start(launcher,
        launcher.shell_plan(1, "[ -n \"$IVY_GENERATION\" ] || exit 1; echo up; sleep 600"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  start_again(launcher, 1);
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "up\n"; }));
  launcher.stop(10'000);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  EXPECT_TRUE(report_of(launcher, 1)->clean());
  finish(launcher);
}

TEST_F(SupervisorRestartTest, RejectsAStartWhileTheLastGenerationRuns) {
  FakeLauncher launcher;
  start(launcher, launcher.shell_plan(1, "echo up; exec sleep 600"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "up\n"; }));
  // During execve() a process has no environment by which it could be found.
  std::vector<pid_t> before;
  ASSERT_TRUE(eventually([&] {
    before = launcher.job_processes();
    return before.size() == 1;
  }));
  start_again(launcher, 1);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  ASSERT_NE(launcher.start_failed(0), nullptr);
  EXPECT_EQ(launcher.start_failed(0)->generation(), 1u);
  EXPECT_TRUE(eventually([&] { return launcher.job_processes() == before; }));
  launcher.stop(0);
  ASSERT_TRUE(wait_for_report(launcher, 0));
  finish(launcher);
}

TEST_F(SupervisorRestartTest, IgnoresASecondRestartOfTheSameGeneration) {
  FakeLauncher launcher;
  start(launcher,
        launcher.shell_plan(1, "[ -n \"$IVY_GENERATION\" ] || exit 1; echo up; sleep 600"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  start_again(launcher, 1);
  start_again(launcher, 1);
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "up\n"; }));
  const auto clones = std::count_if(
      launcher.events().begin(), launcher.events().end(),
      [](const Event& event) { return event.has_started() && event.started().generation() == 1; });
  EXPECT_EQ(clones, 1);
  EXPECT_EQ(launcher.start_failed(0), nullptr);
  launcher.stop(0);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  finish(launcher);
}

TEST_F(SupervisorRestartTest, GivesStandardInputToTheFirstGenerationOnly) {
  FakeLauncher launcher;
  HostPlan plan = launcher.shell_plan(1, "cat; echo end");
  plan.mutable_workers(0)->set_standard_input(true);
  start(launcher, plan);
  launcher.send_input("words\n");
  launcher.send_input("");
  ASSERT_TRUE(wait_for_report(launcher, 0));
  EXPECT_EQ(launcher.output(0), "words\nend\n");
  start_again(launcher, 1);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  EXPECT_EQ(launcher.output(0), "end\n");
  finish(launcher);
}

TEST_F(SupervisorRestartTest, FinishesByItselfAfterTheLastGeneration) {
  FakeLauncher launcher;
  start(launcher, launcher.shell_plan(1, "exit 1"), 1);
  ASSERT_TRUE(wait_for_report(launcher, 0));
  start_again(launcher, 1, true);
  EXPECT_EQ(launcher.wait_for_node(), 0);
  EXPECT_NE(report_of(launcher, 1), nullptr);
}

TEST_F(SupervisorRestartTest, ExitsBetweenGenerationsOnSigterm) {
  FakeLauncher launcher;
  start(launcher, launcher.shell_plan(1, "exit 1"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  ASSERT_EQ(kill(launcher.supervisor_pid(), SIGTERM), 0);
  EXPECT_TRUE(launcher.wait_for_node().has_value());
}

TEST_F(SupervisorRestartTest, ExitsBetweenGenerationsWhenItsLeaseExpires) {
  FakeLauncher::Options options;
  options.peer = LinkPeer::kRelay;
  options.lease_ms = 700;
  FakeLauncher launcher(options);
  start(launcher, launcher.shell_plan(1, "exit 1"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  launcher.stop_responding();
  EXPECT_TRUE(launcher.wait_for_node(seconds(5)).has_value());
}

// A host of the job was lost: fewer ranks, other rank numbers, another environment.
TEST_F(SupervisorRestartTest, RunsTheNewPlanOfARestart) {
  FakeLauncher launcher;
  start(launcher, launcher.shell_plan(2, "exit 7"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  Command command;
  StartAgain& again = *command.mutable_start_again();
  again.set_generation(1);
  *again.mutable_plan() = launcher.shell_plan(1, "exit $((10 + WORLD_SIZE))");
  again.mutable_plan()->mutable_workers(0)->set_rank(5);
  Variable& world = *again.mutable_plan()->add_environment();
  world.set_name("WORLD_SIZE");
  world.set_value("6");
  launcher.send(command);
  ASSERT_TRUE(wait_for_report(launcher, 1));
  EXPECT_EQ(exits(launcher, 1), (std::vector<std::pair<std::uint32_t, int>>{{5, 16}}));
  // The plan of the last restart remains in use.
  start_again(launcher, 2);
  ASSERT_TRUE(wait_for_report(launcher, 2));
  EXPECT_EQ(exits(launcher, 2), (std::vector<std::pair<std::uint32_t, int>>{{5, 16}}));
  finish(launcher);
}

// If a job continues without its first host, its new store serves the later generation from the
// start, and reports when the next one has begun.
TEST_F(SupervisorRestartTest, WaitsForTheStoreToBeginAGeneration) {
  FakeLauncher launcher;
  Hello hello = launcher.hello();
  hello.set_reserve_port(true);
  const std::uint32_t port = launcher.send_hello(hello).reserved_port();
  const auto has = [&](const auto& is_it) {
    return launcher.wait(
        [&] { return std::any_of(launcher.events().begin(), launcher.events().end(), is_it); });
  };
  Command open;
  open.mutable_open_store()->add_addresses("127.0.0.1");
  open.mutable_open_store()->set_generation(3);
  launcher.send(open);
  ASSERT_TRUE(has([](const Event& event) {
    return event.has_store_opened() && event.store_opened().error().empty();
  }));
  // The store's process starts with the first connection.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  // torch sends VALIDATE, then PING, and the store answers PING with its number.
  const std::string ping("\0\xCE\xF7\x85\x3C\x0D\x07\0\0\0", 10);
  ASSERT_EQ(write(fd, ping.data(), ping.size()), static_cast<ssize_t>(ping.size()));
  std::uint32_t pong = 0;
  ASSERT_EQ(recv(fd, &pong, sizeof pong, MSG_WAITALL), 4);
  EXPECT_EQ(pong, 7u);
  Command begin;
  begin.mutable_begin_generation()->set_generation(4);
  launcher.send(begin);
  EXPECT_TRUE(has([](const Event& event) {
    return event.has_generation_begun() && event.generation_begun().generation() == 4;
  }));
  // The old client was disconnected before the event was sent.
  char byte = 0;
  EXPECT_LE(recv(fd, &byte, 1, 0), 0);
  close(fd);
  finish(launcher);
}

TEST_F(SupervisorRestartTest, AnswersForAStoreThatIsNotRunning) {
  FakeLauncher launcher;
  start(launcher, launcher.shell_plan(1, "exit 1"));
  ASSERT_TRUE(wait_for_report(launcher, 0));
  Command command;
  command.mutable_begin_generation()->set_generation(1);
  launcher.send(command);
  EXPECT_TRUE(launcher.wait([&] {
    return std::any_of(launcher.events().begin(), launcher.events().end(), [](const Event& event) {
      return event.has_generation_begun() && event.generation_begun().generation() == 1;
    });
  }));
  finish(launcher);
}

}  // namespace
}  // namespace ivy::test
