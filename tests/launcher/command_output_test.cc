// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/command_output.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "tests/support/eventually.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

CommandRequest shell(const std::string& command, milliseconds deadline = std::chrono::seconds(60)) {
  CommandRequest request;
  request.name = "it";
  request.arguments = {"/bin/sh", "-c", command};
  request.environment = {{"PATH", "/usr/bin:/bin"}, {"WORD", "host"}};
  request.deadline = deadline;
  request.max_bytes = 100'000;
  return request;
}

Error error_of(const CommandRequest& request) {
  const Result<std::string> output = command_output(request);
  EXPECT_FALSE(output.ok());
  return output.ok() ? Error{} : output.error();
}

TEST(CommandOutput, IsStandardOutputOfTheShell) {
  EXPECT_EQ(command_output(shell("echo ${WORD}1; echo oops >&2; printf b | tr b 2; cat")).value(),
            "host1\n2");
  EXPECT_EQ(command_output(shell("head -c 100000 /dev/zero | tr '\\0' x")).value().size(),
            100'000u);
}

TEST(CommandOutput, ReportsErrorsWithTheCodeAndTheLastLine) {
  EXPECT_EQ(error_of(shell("echo one >&2; echo 'no such\tpool' >&2; echo >&2; exit 3")).message,
            "it: the command exited with code 3: no such\\x09pool");
  EXPECT_EQ(error_of(shell("exit 3")).message, "it: the command exited with code 3");
  EXPECT_EQ(error_of(shell("kill -9 $$")).message, "it: the command was killed by SIGKILL");
  CommandRequest nowhere = shell("");
  nowhere.arguments = {"no-such-program"};
  EXPECT_EQ(error_of(nowhere).code, Code::kNotFound);
  EXPECT_EQ(error_of(nowhere).message, "it: start no-such-program: No such file or directory");
}

TEST(CommandOutput, ReadsTheEndOfALongStandardError) {
  EXPECT_EQ(error_of(shell("yes 2>/dev/null | head -c 300000 >&2; echo last >&2; exit 1")).message,
            "it: the command exited with code 1: last");
}

TEST(CommandOutput, IsLimited) {
  const Error error = error_of(shell("yes"));
  EXPECT_EQ(error.code, Code::kResourceExhausted);
  EXPECT_EQ(error.message, "it: the command printed more than 100000 bytes");
  EXPECT_FALSE(command_output(shell("head -c 100001 /dev/zero")).ok());
}

TEST(CommandOutput, HasADeadline) {
  const std::int64_t began_ns = monotonic_ns();
  const Error error = error_of(shell("sleep 600 | cat", milliseconds(1'000)));
  EXPECT_EQ(error.code, Code::kDeadlineExceeded);
  EXPECT_EQ(error.message, "it: the command has not finished within 1 s");
  EXPECT_LT(monotonic_ns() - began_ns, 300'000'000'000);
  // A command that floods its standard error.
  EXPECT_EQ(error_of(shell("yes >&2", milliseconds(1'000))).code, Code::kDeadlineExceeded);
}

// Also returns false for a zombie, which init reaps late on some machines.
bool is_running(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string number, name, state;
  stat >> number >> name >> state;
  return !state.empty() && state != "Z";
}

TEST(CommandOutput, KillsBackgroundProcessesOfTheCommand) {
  const std::string pid = command_output(shell("sleep 600 & printf %s $!")).value();
  ASSERT_FALSE(pid.empty());
  EXPECT_TRUE(test::eventually([&] { return !is_running(pid); }));
}

TEST(CommandOutput, CanBeCancelled) {
  const Descriptor event(eventfd(0, EFD_CLOEXEC));
  CommandRequest request = shell("sleep 600");
  request.cancel_fd = event.get();
  std::thread later([&] {
    usleep(50'000);
    eventfd_write(event.get(), 1);
  });
  EXPECT_EQ(error_of(request).code, Code::kCancelled);
  later.join();
}

}  // namespace
}  // namespace ivy
