// SPDX-License-Identifier: Apache-2.0
// The supervisor's ordinary work: Hello, start, output, input, exits. Goal: every byte and every
// exit arrives in order, whatever the workers do. Method: a real ivy-node over a socketpair.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "agent/node/workers/worker.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_launcher.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns a number from /proc/PID/status, or 0 if it has no such line.
long read_status(pid_t pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  long number = 0;
  for (std::string word; status >> word;)
    if (word == name) status >> number;
  return number;
}

class SupervisorTest : public testing::Test {
 protected:
  // Starts the plan's workers and waits for the host's report.
  void run_to_report(FakeLauncher& launcher, const HostPlan& plan) {
    launcher.send_hello();
    launcher.start(plan);
    ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(20)));
  }
  // The end of each stream arrives after the launcher's next credit.
  static bool all_streams_end(FakeLauncher& launcher, std::uint32_t count) {
    return launcher.wait([&] {
      for (std::uint32_t rank = 0; rank < count; ++rank)
        if (!launcher.output_ended(rank, 1) || !launcher.output_ended(rank, 2)) return false;
      return true;
    });
  }
  static AddressChecked check(FakeLauncher& launcher, std::uint32_t port) {
    Command command;
    command.mutable_check_address()->set_address("127.0.0.1");
    command.mutable_check_address()->set_port(port);
    command.mutable_check_address()->set_timeout_ms(300);
    launcher.send(command);
    EXPECT_TRUE(launcher.wait([&] { return launcher.events().back().has_address_checked(); }));
    return launcher.events().back().address_checked();
  }
  void finish(FakeLauncher& launcher) {
    launcher.finish();
    EXPECT_EQ(launcher.wait_for_node(), 0);
  }

  LeakGuard leaks_;
};

TEST_F(SupervisorTest, DescribesItsHostInTheAnswerToHello) {
  FakeLauncher launcher;
  const HostFacts facts = launcher.send_hello();
  char name[256] = "";
  gethostname(name, sizeof name);
  EXPECT_EQ(facts.host_name(), name);
  EXPECT_GE(facts.cores(), 1u);
  EXPECT_EQ(facts.boot_id().size(), 36u);
  EXPECT_EQ(facts.program_path(), "/bin/sh");
  EXPECT_EQ(facts.program_error(), "");
  EXPECT_EQ(facts.working_directory_error(), "");
  EXPECT_NE(facts.containment(), "");
  EXPECT_EQ(facts.reserved_port(), 0u);
  const auto is_loopback = [](const Address& address) {
    return address.loopback() && address.address() == "127.0.0.1";
  };
  EXPECT_TRUE(std::any_of(facts.addresses().begin(), facts.addresses().end(), is_loopback));
  struct stat token {};
  ASSERT_EQ(stat((facts.job_directory() + "/token").c_str(), &token), 0);
  EXPECT_EQ(token.st_mode & 0777, 0400u);
  EXPECT_EQ(token.st_size, 32);
  finish(launcher);
}

TEST_F(SupervisorTest, KeepsAReservedPortThatTorchCanStillServeOn) {
  FakeLauncher launcher;
  Hello hello = launcher.hello();
  hello.set_reserve_port(true);
  const HostFacts facts = launcher.send_hello(hello);
  ASSERT_NE(facts.reserved_port(), 0u) << facts.reserved_port_error();
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<std::uint16_t>(facts.reserved_port()));
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd, 16), 0);
  ::close(fd);
  finish(launcher);
}

TEST_F(SupervisorTest, CountsARefusingAddressAsReachable) {
  FakeLauncher launcher;
  launcher.send_hello();
  const AddressChecked answer = check(launcher, 1);
  EXPECT_TRUE(answer.reachable()) << answer.error();
  EXPECT_EQ(answer.interface(), "lo");
  EXPECT_EQ(answer.local_address(), "127.0.0.1");
  finish(launcher);
}

TEST_F(SupervisorTest, CountsASilentAddressAsUnreachable) {
  FakeLauncher launcher;
  launcher.send_hello();
  // A listener whose queue is full drops connection requests, as a firewall does.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 0), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  int fillers[3];
  for (int& filler : fillers) {
    filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    connect(filler, reinterpret_cast<sockaddr*>(&address), length);
  }
  const AddressChecked answer = check(launcher, ntohs(address.sin_port));
  EXPECT_FALSE(answer.reachable());
  EXPECT_EQ(answer.error(), "no answer in 0.3 s");
  EXPECT_EQ(answer.interface(), "lo");
  for (const int filler : fillers) ::close(filler);
  ::close(listener);
  finish(launcher);
}

TEST_F(SupervisorTest, StartsWorkersAndReportsTheirOutputAndExits) {
  FakeLauncher launcher;
  run_to_report(launcher, launcher.shell_plan(3, "echo out $RANK; echo err $RANK >&2; exit $RANK"));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    ASSERT_NE(launcher.started(rank), nullptr);
    ASSERT_NE(launcher.exited(rank), nullptr);
    EXPECT_EQ(launcher.exited(rank)->pid(), launcher.started(rank)->pid());
    EXPECT_EQ(launcher.exited(rank)->code(), static_cast<int>(rank));
    EXPECT_EQ(launcher.exited(rank)->signal(), 0);
    EXPECT_FALSE(launcher.exited(rank)->after_stop());
    EXPECT_TRUE(all_streams_end(launcher, 3));
    EXPECT_EQ(launcher.output(rank, 1), "out " + number + "\n");
    EXPECT_EQ(launcher.output(rank, 2), "err " + number + "\n");
  }
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_EQ(launcher.report()->reason(), "");
  finish(launcher);
}

TEST_F(SupervisorTest, DistinguishesSignalsFromExitCodes) {
  FakeLauncher launcher;
  run_to_report(launcher, launcher.shell_plan(3,
                                              "case $RANK in 0) kill -SEGV $$;; 1) kill -KILL $$;; "
                                              "2) exit 139;; esac; sleep 10"));
  EXPECT_EQ(launcher.exited(0)->signal(), SIGSEGV);
  EXPECT_EQ(launcher.exited(1)->signal(), SIGKILL);
  EXPECT_FALSE(launcher.exited(1)->out_of_memory());
  EXPECT_EQ(launcher.exited(2)->signal(), 0);
  EXPECT_EQ(launcher.exited(2)->code(), 139);
  finish(launcher);
}

TEST_F(SupervisorTest, DistinguishesAFailureToExecuteFromExit127) {
  FakeLauncher launcher;
  HostPlan plan = launcher.shell_plan(1, "");
  plan.clear_arguments();
  plan.add_arguments("/nonexistent/program");
  run_to_report(launcher, plan);
  ASSERT_NE(launcher.start_failed(0), nullptr);
  EXPECT_EQ(launcher.start_failed(0)->error(), ENOENT);
  EXPECT_EQ(launcher.start_failed(0)->path(), "/nonexistent/program");
  EXPECT_EQ(launcher.exited(0), nullptr);
  finish(launcher);
}

TEST_F(SupervisorTest, NamesAMissingWorkingDirectory) {
  FakeLauncher launcher;
  HostPlan plan = launcher.shell_plan(1, "true");
  plan.set_working_directory("/nonexistent/directory");
  run_to_report(launcher, plan);
  ASSERT_NE(launcher.start_failed(0), nullptr);
  EXPECT_EQ(launcher.start_failed(0)->step(), "chdir");
  EXPECT_EQ(launcher.start_failed(0)->path(), "/nonexistent/directory");
  finish(launcher);
}

TEST(InheritedEnvironment, HasNoVariablesOfOtherLaunchersOrOfIvyrun) {
  std::string block[] = {"PATH=/bin",        "OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1",
                         "PMIX_RANK=1",      "TORCHELASTIC_RUN_ID=x",  "IVY_HOSTS=a",
                         "NOTIFY_SOCKET=/x", "SLURM_PROCID=1",         "JAX_LOCAL_DEVICE_IDS=0",
                         "RANK=1",           "SLURM_JOB_ID=7",         "CUDA_VISIBLE_DEVICES=1",
                         "TF_CONFIG={}",     "OMP_NUM_THREADS=2",      "IVY_LIBRARY=/lib",
                         "SSH_CLIENT=x",     "SSH_CLIENTS=y"};
  std::vector<char*> pointers;
  for (std::string& entry : block) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  std::string names;
  for (const EnvVariable& variable : inherited_environment(pointers.data(), {"SSH_CLIENT"}))
    names += variable.name + " ";
  EXPECT_EQ(names,
            "PATH SLURM_JOB_ID CUDA_VISIBLE_DEVICES TF_CONFIG OMP_NUM_THREADS IVY_LIBRARY "
            "SSH_CLIENTS ");
}

TEST_F(SupervisorTest, BuildsTheEnvironmentInLayers) {
  setenv("TEST_KEPT", "own", 1);
  setenv("TEST_GONE", "own", 1);
  setenv("PMI_RANK", "own", 1);              // From an outer job.
  setenv("JAX_LOCAL_DEVICE_IDS", "own", 1);  // A variable of ivyrun that this plan does not set.
  setenv("IVY_ANYTHING", "own", 1);          // The default of a flag.
  setenv("IVY_NCCL_LIB", "own", 1);          // Kept because of its name.
  FakeLauncher launcher;
  HostPlan plan =
      launcher.shell_plan(1,
                          "echo $TEST_KEPT/$TEST_GONE/$PMI_RANK$JAX_LOCAL_DEVICE_IDS$IVY_ANYTHING/"
                          "$IVY_NCCL_LIB/$LAYER/$BYTES; "
                          "test -r \"$IVY_TOKEN_FILE\" && echo token; echo $IVY_HOST_INDEX; "
                          "printf trace > \"$TORCHELASTIC_ERROR_FILE\"");
  plan.add_unset("TEST_GONE");
  const auto add = [](Variable* variable, const char* name, const char* value) {
    variable->set_name(name);
    variable->set_value(value);
  };
  add(plan.add_environment(), "LAYER", "host");
  add(plan.add_environment(), "BYTES", "\xff \xfe$(x)");
  add(plan.mutable_workers(0)->add_environment(), "LAYER", "worker");
  run_to_report(launcher, plan);
  ASSERT_TRUE(all_streams_end(launcher, 1));
  EXPECT_EQ(launcher.output(0), "own///own/worker/\xff \xfe$(x)\ntoken\n0\n");
  EXPECT_EQ(launcher.exited(0)->error_file(), "trace");
  finish(launcher);
}

TEST_F(SupervisorTest, IgnoresASecondStartOfTheSameGeneration) {
  FakeLauncher launcher;
  launcher.send_hello();
  const HostPlan plan = launcher.shell_plan(1, "echo once");
  launcher.start(plan);
  launcher.start(plan);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_EQ(launcher.exits(), 1u);
  EXPECT_EQ(launcher.output(0), "once\n");
  finish(launcher);
}

TEST_F(SupervisorTest, StartsThirtyTwoWorkersAtOnce) {
  FakeLauncher launcher;
  run_to_report(launcher, launcher.shell_plan(32, "echo $RANK"));
  EXPECT_EQ(launcher.exits(), 32u);
  const std::uint64_t first = launcher.started(0)->at_ns();
  const std::uint64_t last = launcher.started(31)->at_ns();
  EXPECT_LT(last - first,
            static_cast<std::uint64_t>(scaled_time(milliseconds(500)).count()) * 1'000'000u);
  EXPECT_TRUE(all_streams_end(launcher, 32));
  finish(launcher);
}

// When the descriptor table of a process with threads grows, the process waits for an RCU grace
// period.
TEST_F(SupervisorTest, HasRoomForTheDescriptorsOfAHundredWorkers) {
  FakeLauncher launcher;
  launcher.send_hello();
  const long slots = read_status(launcher.supervisor_pid(), "FDSize:");
  EXPECT_GE(slots, 1024);
  launcher.start(launcher.shell_plan(100, "true"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  EXPECT_EQ(read_status(launcher.supervisor_pid(), "FDSize:"), slots);
  finish(launcher);
}

TEST_F(SupervisorTest, LosesNothingWhenTheLauncherStopsReading) {
  FakeLauncher::Options options;
  options.window_bytes = 256u << 10;
  FakeLauncher launcher(options);
  launcher.send_hello();
  launcher.stop_granting();
  launcher.start(launcher.shell_plan(2, "seq 1 300000"));
  // Once the window is full, nothing more arrives: the workers block on their pipes.
  ASSERT_TRUE(launcher.wait(
      [&] { return launcher.output(0).size() + launcher.output(1).size() > (200u << 10); }));
  launcher.serve(scaled_time(milliseconds(300)));
  EXPECT_LE(launcher.output(0).size() + launcher.output(1).size(), options.window_bytes);
  EXPECT_EQ(launcher.exits(), 0u);
  launcher.resume_granting();
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  ASSERT_TRUE(all_streams_end(launcher, 2));
  std::ostringstream expected;
  for (int i = 1; i <= 300000; ++i) expected << i << '\n';
  EXPECT_TRUE(launcher.output(0) == expected.str());
  EXPECT_TRUE(launcher.output(1) == expected.str());
  finish(launcher);
}

TEST_F(SupervisorTest, LetsExitsOvertakeWaitingOutput) {
  FakeLauncher::Options options;
  options.window_bytes = 64u << 10;
  FakeLauncher launcher(options);
  launcher.send_hello();
  launcher.stop_granting();
  launcher.start(launcher.shell_plan(2, "if [ $RANK = 0 ]; then yes; else sleep 0.3; exit 9; fi"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.exited(1) != nullptr; }));
  EXPECT_EQ(launcher.exited(1)->code(), 9);
  launcher.stop(0);
  launcher.resume_granting();
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_TRUE(launcher.exited(0)->after_stop());
  finish(launcher);
}

TEST_F(SupervisorTest, KeepsTheLastLineWithoutNewlineBeforeACrash) {
  FakeLauncher launcher;
  run_to_report(launcher, launcher.shell_plan(1, "printf last; kill -ABRT $$"));
  ASSERT_TRUE(all_streams_end(launcher, 1));
  EXPECT_EQ(launcher.output(0), "last");
  EXPECT_EQ(launcher.exited(0)->signal(), SIGABRT);
  finish(launcher);
}

TEST_F(SupervisorTest, PassesStandardInputToOneWorkerOnly) {
  FakeLauncher launcher;
  launcher.send_hello();
  HostPlan plan = launcher.shell_plan(2, "wc -c");
  plan.mutable_workers(0)->set_standard_input(true);
  launcher.start(plan);
  // More than the window and the pipe hold, so the supervisor must return credit.
  for (int i = 0; i < 100; ++i) launcher.send_input(std::string(10'000, 'x'));
  launcher.send_input("");
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  ASSERT_TRUE(all_streams_end(launcher, 2));
  EXPECT_EQ(launcher.output(0), "1000000\n");
  EXPECT_EQ(launcher.output(1), "0\n");
  finish(launcher);
}

TEST_F(SupervisorTest, DiscardsInputThatTheWorkerHasClosed) {
  FakeLauncher launcher;
  launcher.send_hello();
  HostPlan plan = launcher.shell_plan(
      1, "exec <&-; echo closed; while ! test -e $IVY_TOKEN_FILE.go; do sleep 0.01; done");
  plan.mutable_workers(0)->set_standard_input(true);
  launcher.start(plan);
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "closed\n"; }));
  for (int i = 0; i < 100; ++i) launcher.send_input(std::string(10'000, 'x'));
  launcher.send_input("");
  // All credit is returned although the worker does not read.
  EXPECT_TRUE(launcher.wait([&] { return launcher.everything_acknowledged(); }));
  launcher.stop(0);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  finish(launcher);
}

TEST_F(SupervisorTest, DeliversASignalOnceToEachWorker) {
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.start(launcher.shell_plan(2,
                                     "trap 'echo usr1; exit 3' USR1; echo ready; "
                                     "while :; do sleep 0.02; done"));
  ASSERT_TRUE(launcher.wait(
      [&] { return launcher.output(0) == "ready\n" && launcher.output(1) == "ready\n"; }));
  launcher.send_signal(SIGUSR1);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(launcher.exited(rank)->code(), 3);
    EXPECT_EQ(launcher.output(rank), "ready\nusr1\n");
  }
  finish(launcher);
}

TEST_F(SupervisorTest, DeliversASignalToTheRanksThatItNames) {
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.start(launcher.shell_plan(2,
                                     "trap 'exit 3' USR1; trap 'exit 4' USR2; echo ready; "
                                     "while :; do sleep 0.02; done"));
  ASSERT_TRUE(launcher.wait(
      [&] { return launcher.output(0) == "ready\n" && launcher.output(1) == "ready\n"; }));
  launcher.send_signal(SIGUSR1, {1});
  launcher.send_signal(SIGUSR2, {0, 7});
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_EQ(launcher.exited(0)->code(), 4);
  EXPECT_EQ(launcher.exited(1)->code(), 3);
  finish(launcher);
}

TEST_F(SupervisorTest, WritesRawLogFilesOnTheNode) {
  char directory[] = "/tmp/ivy-rank-log-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  FakeLauncher launcher;
  HostPlan plan = launcher.shell_plan(1, "printf 'a\\000b'; echo err >&2");
  plan.set_log_directory(directory);
  run_to_report(launcher, plan);
  ASSERT_TRUE(all_streams_end(launcher, 1));
  const std::string folder = std::string(directory) + "/" + launcher.job_id() + "/0/";
  const auto content = [&](const char* name) {
    std::ifstream file(folder + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(content("rank00000.out"), std::string("a\0b", 3));
  EXPECT_EQ(content("rank00000.err"), "err\n");
  finish(launcher);
  std::filesystem::remove_all(directory);
}

TEST_F(SupervisorTest, ContinuesWithOneWarningWhenLogFilesCannotBeWritten) {
  FakeLauncher launcher;
  HostPlan plan = launcher.shell_plan(2, "echo fine");
  plan.set_log_directory("/proc/nowhere");
  run_to_report(launcher, plan);
  EXPECT_EQ(std::count_if(launcher.events().begin(), launcher.events().end(),
                          [](const Event& event) { return event.has_note(); }),
            1);
  EXPECT_EQ(launcher.exited(0)->code(), 0);
  finish(launcher);
}

// A FIFO in place of the file stands for a file system that does not answer: open() blocks until
// there is a reader, and write() blocks when the FIFO is full.
class BlockedLog {
 public:
  explicit BlockedLog(const FakeLauncher& launcher) {
    char directory[] = "/tmp/ivy-rank-log-XXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    path_ = directory_ + "/" + launcher.job_id() + "/0/rank00000.out";
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  ~BlockedLog() {
    if (reader_.joinable()) reader_.join();
    std::filesystem::remove_all(directory_);
  }
  const std::string& directory() const { return directory_; }
  // Lets the file system answer from now on.
  void unblock() {
    reader_ = std::thread([this] {
      std::ifstream file(path_, std::ios::binary);
      content_.assign(std::istreambuf_iterator<char>(file), {});
    });
  }
  // Returns the content of the file at the time it was closed.
  const std::string& content() {
    reader_.join();
    return content_;
  }

 private:
  std::string directory_;
  std::string path_;
  std::string content_;
  std::thread reader_;
};

TEST_F(SupervisorTest, HoldsUpOnlyTheWriterOfABlockedLogFile) {
  FakeLauncher launcher;
  BlockedLog log(launcher);
  launcher.send_hello();
  HostPlan plan = launcher.shell_plan(
      3, "[ $RANK = 1 ] && exit 4; [ $RANK = 2 ] && exec cat; head -c 8000000 /dev/zero");
  plan.set_log_directory(log.directory());
  plan.mutable_workers(2)->set_standard_input(true);
  launcher.start(plan);
  // Exits, commands and input are still handled while no write completes.
  ASSERT_TRUE(launcher.wait([&] { return launcher.exited(1) != nullptr; }));
  launcher.send_input("heard");
  ASSERT_TRUE(launcher.wait([&] { return launcher.everything_acknowledged(); }));
  launcher.send_signal(0);
  // The writer's buffer is bounded: the worker blocks, and its remaining output waits with it.
  launcher.serve(milliseconds(500));
  EXPECT_EQ(launcher.exited(0), nullptr);
  EXPECT_LT(launcher.output(0).size(), 8'000'000u);

  log.unblock();
  launcher.send_input("");
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  EXPECT_EQ(launcher.exited(0)->code(), 0);
  EXPECT_EQ(log.content(), std::string(8'000'000, '\0')) << "complete before the report";
  EXPECT_TRUE(all_streams_end(launcher, 3));
  EXPECT_EQ(launcher.output(0).size(), 8'000'000u);
  finish(launcher);
}

TEST_F(SupervisorTest, LimitsHowLongAStopWaitsForALogFile) {
  FakeLauncher launcher;
  BlockedLog log(launcher);
  launcher.send_hello();
  HostPlan plan = launcher.shell_plan(1, "while :; do echo on and on; done");
  plan.set_log_directory(log.directory());
  launcher.start(plan);
  ASSERT_TRUE(launcher.wait([&] { return launcher.output_bytes() > 1'000'000; }));
  launcher.stop(1000);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  EXPECT_TRUE(launcher.report()->clean());
  EXPECT_TRUE(all_streams_end(launcher, 1));
  const auto is_warning = [](const Event& event) {
    return event.has_note() && event.note().warning() &&
           event.note().text().find(
               "rank00000.out: the file system has accepted no data for 5 s") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(launcher.events().begin(), launcher.events().end(), is_warning), 1);
  finish(launcher);
}

// An exit that cannot be sent must not be forgotten: the launcher would wait for it forever.
TEST_F(SupervisorTest, StopsWhenTheLauncherNeverAcknowledgesEvents) {
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.start(launcher.shell_plan(2, "[ $RANK = 0 ] || exec sleep 600; sleep 3; exit 5"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.started(1) != nullptr; }));
  launcher.stop_reading();
  // Each answer repeats the address: together they nearly fill the room for unacknowledged events.
  Command command;
  command.mutable_check_address()->set_address(std::string(1'000'000, 'x'));
  command.mutable_check_address()->set_timeout_ms(1);
  for (int i = 0; i < 64; ++i) {
    launcher.send(command);
    launcher.serve(milliseconds(10));
  }
  // A failed start is reported for each of many workers.
  HostPlan rejected;
  for (int i = 0; i < 200'000; ++i) rejected.add_workers();
  launcher.start(rejected);
  EXPECT_TRUE(launcher.wait_for_node(seconds(30)).has_value())
      << "it keeps running without sending anything";
}

// A process that holds the job's token leaves no core file; the workers have the user's own limit.
TEST_F(SupervisorTest, LeavesNoCoreAndGivesWorkersTheUsersLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &before), 0);
  if (before.rlim_max < 12'345) GTEST_SKIP() << "the hard limit allows no core";
  // A sanitizer in ivy-node would set the limit to 0 before main().
  setenv("ASAN_OPTIONS", "disable_coredump=0", 1);
  const rlimit users{12'345, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &users), 0);
  {
    FakeLauncher launcher;
    run_to_report(launcher, launcher.shell_plan(1, "grep core /proc/self/limits"));
    ASSERT_TRUE(all_streams_end(launcher, 1));
    const auto soft_limit = [](const std::string& limits) {
      const std::size_t at = limits.find("Max core file size");
      return at == std::string::npos ? -1 : std::atoi(limits.c_str() + at + 18);
    };
    EXPECT_EQ(soft_limit(launcher.output(0)), 12'345);
    for (const pid_t pid : {launcher.node_pid(), launcher.supervisor_pid()}) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/limits");
      const std::string limits(std::istreambuf_iterator<char>(file), {});
      EXPECT_EQ(soft_limit(limits), 0) << limits;
    }
    finish(launcher);
  }
  unsetenv("ASAN_OPTIONS");
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &before), 0);
}

// The first failure is the cause. The supervisor is stopped while all workers exit, the last one
// started first.
TEST_F(SupervisorTest, OrdersExitsThatItCollectsLate) {
  constexpr int kWorkers = 10;
  char directory[] = "/tmp/ivy-exit-order-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  FakeLauncher launcher;
  launcher.send_hello();
  const std::string folder = directory;
  launcher.start(
      launcher.shell_plan(kWorkers, "echo up; until [ -e " + folder +
                                        "/$((RANK + 1)) ]; do sleep 0.01; done; sleep 0.1; >" +
                                        folder + "/$RANK; exit 1"));
  ASSERT_TRUE(launcher.wait([&] {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
      if (launcher.output(rank) != "up\n") return false;
    return true;
  }));
  const pid_t supervisor = launcher.supervisor_pid();
  ASSERT_EQ(kill(supervisor, SIGSTOP), 0);
  std::ofstream(folder + "/" + std::to_string(kWorkers)) << "go";
  EXPECT_TRUE(eventually([&] { return launcher.worker_state(0) == "Z"; }));
  ASSERT_EQ(kill(supervisor, SIGCONT), 0);
  ASSERT_TRUE(launcher.wait([&] { return launcher.exits() == kWorkers; }));
  for (std::uint32_t rank = 1; rank < kWorkers; ++rank)
    EXPECT_GT(launcher.exited(rank - 1)->at_ns(), launcher.exited(rank)->at_ns()) << rank;
  finish(launcher);
  std::filesystem::remove_all(directory);
}

TEST_F(SupervisorTest, LimitsItsMemoryWhileWorkersPrint) {
  FakeLauncher::Options options;
  options.window_bytes = 8u << 20;
  FakeLauncher launcher(options);
  launcher.send_hello();
  launcher.keep_no_output();
  launcher.start(launcher.shell_plan(4, "head -c 60000000 /dev/zero"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }, seconds(30)));
  ASSERT_TRUE(all_streams_end(launcher, 4));
  const long peak_kib = read_status(launcher.supervisor_pid(), "VmHWM:");
  EXPECT_GT(peak_kib, 0);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(peak_kib, 64 << 10);
#endif
  EXPECT_EQ(launcher.output_bytes(), 4u * 60'000'000u);
  finish(launcher);
}

TEST_F(SupervisorTest, ReportsTheFailedStepWhenDescriptorsRunOut) {
  FakeLauncher launcher;
  launcher.send_hello();
  const rlimit few{30, 30};
  ASSERT_EQ(prlimit(launcher.supervisor_pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  launcher.start(launcher.shell_plan(8, "exec sleep 600"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.start_failed(7) != nullptr; }));
  EXPECT_NE(launcher.started(0), nullptr);
  EXPECT_EQ(launcher.start_failed(7)->error(), EMFILE);
  EXPECT_NE(launcher.start_failed(7)->step(), "");
  launcher.stop(0);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  EXPECT_TRUE(launcher.report()->clean());
  finish(launcher);
}

TEST_F(SupervisorTest, ReapsEveryOrphan) {
  FakeLauncher launcher;
  launcher.send_hello();
  launcher.start(launcher.shell_plan(
      1, "i=0; while [ $i -lt 200 ]; do (true &) ; i=$((i+1)); done; echo done; sleep 60"));
  ASSERT_TRUE(launcher.wait([&] { return launcher.output(0) == "done\n"; }, seconds(30)));
  const pid_t supervisor = launcher.supervisor_pid();
  const auto zombies = [&] {
    int count = 0;
    // Each thread has its own list of the children that it created.
    const std::string tasks = "/proc/" + std::to_string(supervisor) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::ifstream children(task.path() / "children");
      for (std::string pid; children >> pid;) ++count;
    }
    return count - 1;  // The worker itself.
  };
  EXPECT_TRUE(launcher.wait([&] { return zombies() == 0; }, seconds(2)));
  launcher.stop(0);
  ASSERT_TRUE(launcher.wait([&] { return launcher.report() != nullptr; }));
  finish(launcher);
}

}  // namespace
}  // namespace ivy::test
