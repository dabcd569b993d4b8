// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstddef>
#include <fstream>
#include <limits>

#include "agent/node/spawn/clone_process.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/leak_guard.h"

namespace ivy::test {
namespace {

class SpawnTest : public testing::Test {
 protected:
  SpawnTest() {
    std::array<char, 32> name{"/tmp/ivy-spawn-test-XXXXXX"};
    directory_ = mkdtemp(name.data());
  }
  ~SpawnTest() override { [[maybe_unused]] const int r = system(("rm -rf " + directory_).c_str()); }

  std::string make_file(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  SpawnFailure failure_of(SpawnRequest request) {
    const Finished finished = run_to_end(std::move(request));
    EXPECT_FALSE(finished.spawned.ok());
    return finished.spawned.failure;
  }
  SpawnFailure failure_to_execute(const std::string& path) {
    SpawnRequest request = request_for("exit_code", {"0"});
    request.executable = path;
    return failure_of(request);
  }

  std::string directory_;
  LeakGuard guard_;
};

TEST_F(SpawnTest, KeepsEveryExitCode) {
  for (int code = 0; code <= 255; ++code) {
    const Finished finished = run_to_end(request_for("exit_code", {std::to_string(code)}));
    ASSERT_TRUE(finished.spawned.ok());
    ASSERT_EQ(finished.status, (ExitStatus{.code = code, .signal = 0}));
  }
}

TEST_F(SpawnTest, KeepsEveryDeadlySignal) {
  for (int number = 1; number <= SIGRTMAX; ++number) {
    const bool is_harmless = number == SIGCHLD || number == SIGCONT || number == SIGURG ||
                             number == SIGWINCH || number == SIGSTOP || number == SIGTSTP ||
                             number == SIGTTIN || number == SIGTTOU;
    const bool is_reserved_by_libc = number >= 32 && number < SIGRTMIN;
    if (is_harmless || is_reserved_by_libc) continue;
    const Finished finished = run_to_end(request_for("crash", {std::to_string(number)}));
    ASSERT_EQ(finished.status, (ExitStatus{.code = 0, .signal = number})) << number;
  }
}

TEST_F(SpawnTest, DistinguishesAMissingProgramFromExitCode127) {
  const SpawnFailure failure = failure_to_execute(directory_ + "/missing");
  EXPECT_EQ(failure.step, "exec");
  EXPECT_EQ(failure.error, ENOENT);
  EXPECT_EQ(failure.path, directory_ + "/missing");
  EXPECT_EQ(run_to_end(request_for("exit_code", {"127"})).status.code, 127);
}

TEST_F(SpawnTest, ReportsWhatCannotBeExecuted) {
  EXPECT_EQ(failure_to_execute(directory_).error, EACCES);
  EXPECT_EQ(failure_to_execute(make_file("plain", "#!/bin/sh\n", 0644)).error, EACCES);
  EXPECT_EQ(failure_to_execute(make_file("no-magic", "echo hello\n", 0755)).error, ENOEXEC);
  EXPECT_EQ(failure_to_execute(make_file("bad", "#!/no/such/interpreter\n", 0755)).error, ENOENT);
}

TEST_F(SpawnTest, ReportsAWorkingDirectoryThatIsMissing) {
  SpawnRequest request = request_for("exit_code", {"0"});
  request.working_directory = directory_ + "/nowhere";
  const SpawnFailure failure = failure_of(request);
  EXPECT_EQ(failure.step, "chdir");
  EXPECT_EQ(failure.error, ENOENT);
  EXPECT_EQ(failure.path, directory_ + "/nowhere");
}

TEST_F(SpawnTest, ReportsAnArgumentBeyondTheKernelsLimit) {
  const SpawnFailure failure = failure_of(request_for("exit_code", {std::string(200'000, 'x')}));
  EXPECT_EQ(failure.step, "exec");
  EXPECT_EQ(failure.error, E2BIG);
}

TEST_F(SpawnTest, NeverStartsOutsideTheRequestedCgroup) {
  SpawnRequest request = request_for("exit_code", {"0"});
  const int not_a_cgroup = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  request.cgroup_fd = not_a_cgroup;
  const SpawnFailure failure = failure_of(request);
  close(not_a_cgroup);
  EXPECT_EQ(failure.step, "cgroup");
  EXPECT_EQ(failure.error, ENOENT);
}

TEST_F(SpawnTest, StartsWithACleanStateWhateverTheParentDid) {
  signal(SIGTERM, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGRTMIN + 3);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const int stray =
      open("/dev/null", O_RDONLY);  // Without O_CLOEXEC, as a careless library opens it.

  const Finished finished = run_to_end(request_for("show_state"));

  close(stray);
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(finished.output,
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
            "descriptors 3 highest 2\ngroup leader 1 in its parent's session 1\n"
            "memlock at hard limit 1\ncwd /\nstdin /dev/null\n");
}

TEST_F(SpawnTest, AppliesLimitsAsFarAsTheHardOnesAllow) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  SpawnRequest request = request_for("show_state");
  request.executable = "/bin/sh";
  request.arguments = {"sh", "-c", "umask; ulimit -Sn; ulimit -Ss; ulimit -Sc; nice"};
  request.limits = SpawnLimits{.umask = 027, .nice = 3};
  request.limits->soft[RLIMIT_STACK] = 1u << 20;
  request.limits->soft[RLIMIT_CORE] = 0;
  request.limits->soft[RLIMIT_NOFILE] = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(run_to_end(request).output,
            "0027\n" +
                (files.rlim_max == RLIM_INFINITY ? "unlimited" : std::to_string(files.rlim_max)) +
                "\n1024\n0\n3\n");
}

TEST_F(SpawnTest, StartsInASeparateSessionOnRequest) {
  SpawnRequest request = request_for("show_state");
  request.own_session = true;
  EXPECT_NE(run_to_end(request).output.find("group leader 1 in its parent's session 0\n"),
            std::string::npos);
}

TEST_F(SpawnTest, RunsOnTheRequestedProcessors) {
  cpu_set_t ours;
  ASSERT_EQ(sched_getaffinity(0, sizeof ours, &ours), 0);
  int last = 0;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &ours)) last = processor;
  SpawnRequest request = request_for("exit_code", {});
  request.executable = "/bin/sh";
  request.arguments = {
      "sh", "-c",
      "exec grep -qE 'Cpus_allowed_list:.[0]*" + std::to_string(last) + "$' /proc/self/status"};
  request.cores = {last};
  request.memory_node = 0;
  EXPECT_EQ(run_to_end(request).status.code, 0);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&ours, &after)) << "the supervisor's own processors do not change";
}

TEST_F(SpawnTest, NeverStartsOnOtherProcessors) {
  SpawnRequest request = request_for("exit_code", {"0"});
  request.cores = {8000, 8001};
  const SpawnFailure failure = failure_of(request);
  EXPECT_EQ(failure.step, "bind");
  EXPECT_EQ(failure.error, EINVAL);
  EXPECT_EQ(failure.path, "processors 8000-8001");
}

TEST_F(SpawnTest, KeepsTheParentsSignalMask) {
  sigset_t before;
  sigset_t after;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  run_to_end(request_for("exit_code", {"0"}));
  sigprocmask(SIG_SETMASK, nullptr, &after);
  for (int number = 1; number <= SIGRTMAX; ++number) {
    EXPECT_EQ(sigismember(&before, number), sigismember(&after, number)) << number;
  }
}

TEST_F(SpawnTest, DeliversEveryByteOfArgumentsAndVariables) {
  std::string bytes;
  for (int byte = 1; byte <= 255; ++byte) bytes += static_cast<char>(byte);
  SpawnRequest request = request_for("echo_bytes", {bytes, "", " two  blanks ", "$(x)`y`'\""});
  request.environment = {{"ODD", bytes}, {"EMPTY", ""}};
  const Finished finished = run_to_end(request);
  const auto entry = [](const std::string& text) { return text + '\0'; };
  EXPECT_EQ(finished.output, entry("echo_bytes") + entry(bytes) + entry("") +
                                 entry(" two  blanks ") + entry("$(x)`y`'\"") + entry("") +
                                 entry("ODD=" + bytes) + entry("EMPTY="));
}

TEST_F(SpawnTest, DeliversAMegabyteOfArguments) {
  std::vector<std::string> arguments;
  for (char letter = 'a'; letter < 'k'; ++letter) arguments.emplace_back(100'000, letter);
  const Finished finished = run_to_end(request_for("echo_bytes", arguments));
  EXPECT_EQ(finished.output.size(), std::string("echo_bytes").size() + 1 + 10 * 100'001 + 1);
}

TEST_F(SpawnTest, PlacesDescriptorsThatAreStandardDescriptorsThemselves) {
  // Swaps standard output and standard error.
  Pipe first;
  Pipe second;
  const int saved_out = fcntl(1, F_DUPFD_CLOEXEC, 3);
  const int saved_err = fcntl(2, F_DUPFD_CLOEXEC, 3);
  dup2(first.writer(), 1);
  dup2(second.writer(), 2);
  SpawnRequest request = request_for("flood", {"64"});
  request.stdout_fd = 2;
  request.stderr_fd = 1;
  const SpawnResult spawned = spawn(request);
  dup2(saved_out, 1);
  dup2(saved_err, 2);
  close(saved_out);
  close(saved_err);
  first.close_end(1);
  second.close_end(1);
  ASSERT_TRUE(spawned.ok());
  EXPECT_TRUE(wait_exit(spawned.process).is_success());
  EXPECT_EQ(read_text(first.reader(), ReadUntil::kEnd).size(), 0u);
  EXPECT_EQ(read_text(second.reader(), ReadUntil::kEnd).size(), 64u);
}

// Makes clone3 fail, as container runtimes do.
void forbid_clone3() {
  std::array<sock_filter, 4> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{program.size(), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(100);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(101);
}

TEST_F(SpawnTest, WorksWhereCloneThreeIsForbidden) {
  const pid_t filtered = fork();
  if (filtered == 0) {
    forbid_clone3();
    const Finished finished = run_to_end(request_for("exit_code", {"42"}));
    SpawnRequest missing = request_for("exit_code", {"0"});
    missing.executable = "/no/such/program";
    const bool reported = run_to_end(missing).spawned.failure.error == ENOENT;
    _exit(finished.status.code == 42 && reported ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(filtered, &status, 0), filtered);
  EXPECT_EQ(status, 0);
}

TEST_F(SpawnTest, FindsAnExecutableAsTheShellDoes) {
  const std::string tool = make_file("tool", "#!/bin/sh\n", 0755);
  make_file("plain", "text", 0644);
  int error = -1;
  EXPECT_EQ(*find_executable("tool", "/nowhere:" + directory_, "/", &error), tool);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(*find_executable("tool", "", directory_, &error), tool);  // Empty entry: here.
  EXPECT_EQ(*find_executable("./tool", "", directory_, &error), directory_ + "/./tool");
  EXPECT_EQ(*find_executable(tool, "", "/", &error), tool);
}

TEST_F(SpawnTest, ReportsWhyNoExecutableWasFound) {
  make_file("plain", "text", 0644);
  struct Case {
    std::string name;
    int error;
    Code code;
  };
  const std::vector<Case> cases = {{"missing", ENOENT, Code::kNotFound},
                                   {"plain", EACCES, Code::kPermissionDenied},
                                   {directory_, EISDIR, Code::kPermissionDenied},
                                   {"", ENOENT, Code::kNotFound},
                                   {"plain/below", ENOTDIR, Code::kNotFound}};
  for (const Case& each : cases) {
    int error = -1;
    const auto found = find_executable(each.name, "/nowhere:" + directory_, directory_, &error);
    ASSERT_FALSE(found.ok()) << each.name;
    EXPECT_EQ(error, each.error) << each.name;
    EXPECT_EQ(found.error().code, each.code) << each.name;
  }
}

TEST_F(SpawnTest, ReapsTheProbeProcess) {
  CgroupProbe trial(-1);
  EXPECT_EQ(trial.error(), 0);
  trial.wait();
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG | __WALL), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(SpawnTest, ReportsWhyAProbeProcessCouldNotStart) {
  const int no_cgroup = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_NE(CgroupProbe(no_cgroup).error(), 0);
  close(no_cgroup);
}

// All processes are cloned before the test waits for the first, and share this process's memory
// until then.
TEST_F(SpawnTest, StartsManyProcessesConcurrently) {
  constexpr int kMany = 64;
  std::vector<PendingSpawn> pending;
  for (int code = 0; code < kMany; ++code) {
    SpawnRequest request = request_for("exit_code", {std::to_string(code)});
    if (code % 2 == 1) request.executable = directory_ + "/missing-" + std::to_string(code);
    pending.push_back(begin_spawn(request));
  }
  for (int code = 0; code < kMany; ++code) {
    const SpawnResult result = finish_spawn(pending[static_cast<std::size_t>(code)]);
    ASSERT_EQ(result.ok(), code % 2 == 0) << code;
    if (result.ok()) {
      EXPECT_EQ(wait_exit(result.process).code, code);
    } else {
      EXPECT_EQ(result.failure.path, directory_ + "/missing-" + std::to_string(code));
      EXPECT_EQ(result.failure.error, ENOENT);
    }
  }
}

}  // namespace
}  // namespace ivy::test
