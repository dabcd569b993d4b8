// SPDX-License-Identifier: Apache-2.0
// Selects the methods to get a stack, from the kernel's facts about a process.
#include "agent/node/hang/stack_methods.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/node/hang/process_view.h"
#include "agent/node/workers/python_hook.h"
#include "tests/support/eventually.h"

namespace ivy {
namespace {

using Methods = std::vector<StackMethod>;
constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(StackLadder, SelectsMethodsByTheStateOfTheProcess) {
  struct Case {
    StackFacts facts;
    Methods methods;
  };
  const Case cases[] = {
      {{'S', true, true, false, false},
       {StackMethod::kHook, StackMethod::kPySpy, StackMethod::kGdb}},
      {{'S', true, true, true, false},
       {StackMethod::kPySpy, StackMethod::kGdb, StackMethod::kHook}},
      {{'S', true, true, false, true}, {StackMethod::kHook}},
      {{'S', true, false, false, false}, {StackMethod::kPySpy, StackMethod::kGdb}},
      {{'R', false, false, false, false}, {StackMethod::kGdb}},
      {{'R', false, false, false, true}, {}},
      // A stopped process handles no signal, but a debugger can read it.
      {{'T', true, true, false, false}, {StackMethod::kPySpy, StackMethod::kGdb}},
      {{'T', true, true, false, true}, {}},
      {{'D', true, true, true, false}, {}},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(stack_methods(one.facts), one.methods) << one.facts.state;
    const bool may_be_silent = one.facts.light && !one.facts.has_hook;
    EXPECT_EQ(why_no_stack(one.facts).empty(), may_be_silent) << one.facts.state;
  }
}

TEST(StackLadder, ExplainsTheToolsErrors) {
  EXPECT_TRUE(has_stack(StackMethod::kGdb, "x\n#0  main ()"));
  EXPECT_FALSE(has_stack(StackMethod::kGdb, "ptrace: Operation not permitted.\n"));
  EXPECT_EQ(error_text_of("warning: x\n\n[New LWP 3]\nptrace: No such process.\nmore"),
            "ptrace: No such process.");
  EXPECT_EQ(error_text_of(""), "");
}

ProcessStat process(pid_t pid, pid_t parent, const std::string& name, std::uint64_t start) {
  ProcessStat made;
  made.pid = pid;
  made.parent = parent;
  made.name = name;
  made.state = 'S';
  made.start_time = start;
  return made;
}

TEST(ProcessView, SkipsShells) {
  const std::vector<ProcessStat> all = {process(10, 1, "bash", 1), process(12, 10, "sh", 3),
                                        process(11, 10, "tee", 4), process(13, 12, "python3", 5),
                                        process(14, 13, "sh", 6),  process(20, 1, "dash", 1)};
  EXPECT_EQ(process_below_shells(10, all), 13);
  EXPECT_EQ(process_below_shells(13, all), 13);
  EXPECT_EQ(process_below_shells(20, all), 20);
  EXPECT_EQ(process_below_shells(99, all), 99);
}

TEST(ProcessView, ShowsAChildProcess) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGUSR1, [](int) {});
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ProcessView view;
  ASSERT_TRUE(read_process_view(child, view));
  EXPECT_EQ(view.stat.state, 'T');
  EXPECT_EQ(view.threads, 1u);
  EXPECT_NE(view.caught_signals >> (SIGUSR1 - 1) & 1, 0u);
  EXPECT_EQ(view.caught_signals >> (kStackSignal - 1) & 1, 0u);
  EXPECT_FALSE(runs_python(child));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_FALSE(read_process_view(child, view));
}

TEST(ProcessView, DistinguishesThreadsThatSleepFromThreadsThatRun) {
  std::atomic<bool> is_over = false;
  std::promise<void> woken;
  std::thread sleeper([&] { woken.get_future().wait(); });
  std::optional<std::uint64_t> before;
  EXPECT_TRUE(test::eventually([&] {
    const auto now = switches_of_sleeping_threads(getpid());
    return now && std::exchange(before, now) == now;
  }));
  std::thread runner([&] {
    while (!is_over) {
    }
  });
  EXPECT_TRUE(test::eventually([] { return !switches_of_sleeping_threads(getpid()); }));
  is_over = true;
  woken.set_value();
  runner.join();
  sleeper.join();
}

TEST(FlightVariables, AreSetOnlyIfTheUserSetsNothing) {
  JobDirectory directory;
  directory.path = "/job";
  Environment environment;
  add_evidence_variables(environment, directory, 2);
  EXPECT_EQ(*find_variable(environment, "TORCH_FR_BUFFER_SIZE"), "1000");
  // torch's own dumps remain where the user expects them.
  EXPECT_EQ(find_variable(environment, "TORCH_FR_DUMP_TEMP_FILE"), nullptr);
  // torch warns about this variable at every start.
  EXPECT_EQ(find_variable(environment, "TORCH_NCCL_TRACE_BUFFER_SIZE"), nullptr);
  environment = {{"TORCH_NCCL_TRACE_BUFFER_SIZE", "5"}};
  add_evidence_variables(environment, directory, 0);
  EXPECT_EQ(find_variable(environment, "TORCH_FR_BUFFER_SIZE"), nullptr);
}

}  // namespace
}  // namespace ivy
