// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/line_child.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/launcher/link_probe.h"

namespace ivy {
namespace {

struct RecordedEvents final : LineChildEvents {
  std::vector<std::string> output, errors;
  std::optional<ExitStatus> end;

  void child_output(const std::string& line) override { output.push_back(line); }
  void child_error(const std::string& line) override { errors.push_back(line); }
  void child_exited(const ExitStatus& status) override { end = status; }
};

const Environment kPath = {{"PATH", "/usr/bin:/bin"}};

TEST(LineChildTest, ReportsEachLineAndThenTheEnd) {
  boost::asio::io_context loop;
  RecordedEvents events;
  auto child = LineChild::start(
      loop, {"/bin/sh", "-c", "echo one; echo oops >&2; printf two; exit 3"}, kPath, events);
  ASSERT_TRUE(child.ok()) << child.error().message;
  ASSERT_TRUE(run_until(loop, [&] { return events.end.has_value(); }));
  EXPECT_EQ(events.output, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(events.errors, std::vector<std::string>{"oops"});
  EXPECT_FALSE(events.end->is_success());
}

// A job starts one for each host, so leaks would add up.
TEST(LineChildTest, LeavesNothingAfterItsEnd) {
  boost::asio::io_context loop;
  RecordedEvents events;
  auto child = LineChild::start(loop, {"/bin/sh", "-c", "echo one"}, kPath, events);
  ASSERT_TRUE(child.ok()) << child.error().message;
  const std::weak_ptr<LineChild> watched = child.value();
  child.value().reset();
  ASSERT_TRUE(run_until(loop, [&] { return events.end.has_value(); }));
  EXPECT_TRUE(run_until(loop, [&] { return watched.expired(); }));
}

TEST(LineChildTest, IsFreedWithTheLoopWhileTheChildRuns) {
  std::optional<boost::asio::io_context> loop(std::in_place);
  RecordedEvents events;
  auto child = LineChild::start(*loop, {"/bin/sh", "-c", "echo $$; read end"}, kPath, events);
  ASSERT_TRUE(child.ok()) << child.error().message;
  const std::weak_ptr<LineChild> watched = child.value();
  child.value().reset();
  ASSERT_TRUE(run_until(*loop, [&] { return !events.output.empty(); }));
  EXPECT_FALSE(watched.expired());
  loop.reset();
  EXPECT_TRUE(watched.expired());
  // Its input was closed, so it exits.
  const pid_t pid = std::stoi(events.output.front());
  EXPECT_EQ(TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0)), pid);
}

TEST(LineChildTest, ReportsAMissingProgram) {
  boost::asio::io_context loop;
  RecordedEvents events;
  const auto child = LineChild::start(loop, {"/nowhere/program"}, kPath, events);
  EXPECT_EQ(child.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ivy
