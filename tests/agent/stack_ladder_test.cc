// Which ways to a stack are tried, what the kernel says about a process, and dumps of torch's.
#include "agent/node/hang/stack_ladder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "agent/node/hang/flight_dump.h"
#include "agent/node/hang/process_view.h"
#include "agent/node/workers/python_hook.h"

namespace ivy {
namespace {

using Ways = std::vector<StackWay>;
constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(StackLadder, Table) {
  struct Case {
    StackFacts facts;
    Ways ways;
  };
  const Case cases[] = {
      {{'S', true, true, false, false}, {StackWay::kHook, StackWay::kPySpy, StackWay::kGdb}},
      {{'S', true, true, true, false}, {StackWay::kPySpy, StackWay::kGdb, StackWay::kHook}},
      {{'S', true, true, false, true}, {StackWay::kHook}},
      {{'S', true, false, false, false}, {StackWay::kPySpy, StackWay::kGdb}},
      {{'R', false, false, false, false}, {StackWay::kGdb}},
      {{'R', false, false, false, true}, {}},
      // Stopped: it answers no signal, a debugger can look.
      {{'T', true, true, false, false}, {StackWay::kPySpy, StackWay::kGdb}},
      {{'T', true, true, false, true}, {}},
      {{'D', true, true, true, false}, {}},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(stack_ways(one.facts), one.ways) << one.facts.state;
    const bool may_be_silent = one.facts.light && !one.facts.has_hook;
    EXPECT_EQ(why_no_stack(one.facts).empty(), may_be_silent) << one.facts.state;
  }
}

TEST(StackLadder, WhatToolsSay) {
  EXPECT_TRUE(has_stack(StackWay::kGdb, "x\n#0  main ()"));
  EXPECT_FALSE(has_stack(StackWay::kGdb, "ptrace: Operation not permitted.\n"));
  EXPECT_EQ(complaint_of("warning: x\n\n[New LWP 3]\nptrace: No such process.\nmore"),
            "ptrace: No such process.");
  EXPECT_EQ(complaint_of(""), "");
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

TEST(ProcessView, ShellsAreNotWhoIsMeant) {
  const std::vector<ProcessStat> all = {process(10, 1, "bash", 1), process(12, 10, "sh", 3),
                                        process(11, 10, "tee", 4), process(13, 12, "python3", 5),
                                        process(14, 13, "sh", 6),  process(20, 1, "dash", 1)};
  EXPECT_EQ(process_below_shells(10, all), 13);
  EXPECT_EQ(process_below_shells(13, all), 13);
  EXPECT_EQ(process_below_shells(20, all), 20);
  EXPECT_EQ(process_below_shells(99, all), 99);
}

TEST(ProcessView, OfAChild) {
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

class FlightDumpTest : public testing::Test {
 protected:
  FlightDumpTest() {
    std::string name = testing::TempDir() + "flight-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~FlightDumpTest() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& text) const { std::ofstream(directory_ + "/d-3") << text; }
  FlightDump dump() const { return {directory_ + "/d-", directory_ + "/d-", 3}; }
  static FlightDump asked(FlightDump dump) {
    dump.begin(kSecond);
    dump.ask(kSecond);
    return dump;
  }

  std::string directory_;
  std::string note_;
};

TEST_F(FlightDumpTest, NobodyListensAndNothingIsThere) {
  EXPECT_FALSE(asked(dump()).has_dump_or_question());
  mkfifo((directory_ + "/d-3.pipe").c_str(), 0600);
  // A pipe without a reader does not hold us up.
  EXPECT_FALSE(asked(dump()).has_dump_or_question());
}

TEST_F(FlightDumpTest, AsksAndWaitsForTheWholeFile) {
  const std::string pipe = directory_ + "/d-3.pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int torch = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write("older");
  FlightDump dump = asked(this->dump());
  ASSERT_TRUE(dump.was_asked());
  char asked = 0;
  EXPECT_EQ(read(torch, &asked, 1), 1);
  EXPECT_FALSE(dump.advance(2 * kSecond));
  write("the newer one");
  EXPECT_FALSE(dump.advance(2 * kSecond + 1));
  EXPECT_TRUE(dump.advance(3 * kSecond));
  EXPECT_EQ(dump.take(100, note_), "the newer one");
  EXPECT_EQ(dump.take(4, note_), "");
  EXPECT_NE(note_.find("13 bytes"), std::string::npos) << note_;
  close(torch);
}

TEST_F(FlightDumpTest, OneThatDoesNotAnswerHasADeadline) {
  const std::string pipe = directory_ + "/d-3.pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int torch = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  FlightDump dump = asked(this->dump());
  ASSERT_TRUE(dump.was_asked());
  EXPECT_FALSE(dump.advance(2 * kSecond));
  EXPECT_TRUE(dump.advance(kSecond + FlightDump::kPatienceNs));
  EXPECT_EQ(dump.take(100, note_), "");
  EXPECT_FALSE(note_.empty());
  close(torch);
}

TEST_F(FlightDumpTest, ALinkIsNotFollowed) {
  write("elsewhere");
  std::filesystem::create_symlink(directory_ + "/d-3", directory_ + "/d-4");
  FlightDump dump(directory_ + "/d-", directory_ + "/d-", 4);
  EXPECT_FALSE(asked(dump).has_dump_or_question());
}

TEST(FlightVariables, OnlyWhereTheUserSaysNothing) {
  JobDirectory directory;
  directory.path = "/job";
  Environment environment;
  add_evidence_variables(environment, directory, 2);
  EXPECT_EQ(*find_variable(environment, "TORCH_FR_BUFFER_SIZE"), "1000");
  EXPECT_EQ(*find_variable(environment, "TORCH_FR_DUMP_TEMP_FILE"), "/job/flight-2-");
  EXPECT_EQ(*find_variable(environment, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), "/job/flight-2-");
  // torch warns at every start about this one.
  EXPECT_EQ(find_variable(environment, "TORCH_NCCL_TRACE_BUFFER_SIZE"), nullptr);
  environment = {{"TORCH_NCCL_TRACE_BUFFER_SIZE", "5"},
                 {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
                 {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/x"}};
  add_evidence_variables(environment, directory, 0);
  EXPECT_EQ(find_variable(environment, "TORCH_FR_BUFFER_SIZE"), nullptr);
  EXPECT_EQ(find_variable(environment, "TORCH_FR_DUMP_ON_TIMEOUT"), nullptr);
  EXPECT_EQ(find_variable(environment, "TORCH_FR_DUMP_TEMP_FILE"), nullptr);
}

}  // namespace
}  // namespace ivy
