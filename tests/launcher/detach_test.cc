// SPDX-License-Identifier: Apache-2.0
// The fork into the background, the output of a detached job, and the log files that ivyctl reads.
#include "launcher/job/core/detach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "launcher/ctl/log_reader.h"
#include "launcher/screen/output.h"
#include "tests/support/eventually.h"
#include "tests/support/leak_guard.h"

namespace ivy {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ivytest-detach-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::app) << text;
  }
  test::LeakGuard guard_;
  std::string folder_;
};

// ---- Detachment ---------------------------------------------------------------------------------

class DetachmentTest : public FolderTest {
 protected:
  // Runs `launcher` behind a Detachment in a separate process whose standard output is a file.
  // Returns that process, the parent of the launcher.
  template <class Launcher>
  pid_t start(Launcher launcher) {
    std::fflush(stdout);  // Otherwise the child prints a line of the test runner twice.
    const pid_t parent = fork();
    if (parent != 0) return parent;
    const int out = open((folder_ + "/out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, STDOUT_FILENO);
    auto begun = Detachment::begin({"0123456789abcdef0123456789abcdef", folder_});
    if (!begun.ok()) _exit(99);
    launcher(**begun);
    _exit(0);
  }
  int status_of(pid_t pid) {
    int status = -1;
    EXPECT_TRUE(test::eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }));
    return status;
  }
  void say(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name + ".new") << text;
    fs::rename(folder_ + "/" + name + ".new", folder_ + "/" + name);
  }
};

TEST_F(DetachmentTest, TheParentReportsAndExitsWhenTheLauncherDetaches) {
  const std::string log = folder_ + "/log";
  const pid_t parent = start([&](Detachment& detachment) {
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    detachment.leave(fd);
    std::printf("to the log\n");
    std::fflush(stdout);
    say("launcher", std::to_string(getpid()) + " " + std::to_string(getsid(0)));
  });
  const int status = status_of(parent);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(test::eventually([&] { return fs::exists(folder_ + "/launcher"); }));
  const std::string ids = text_of(folder_ + "/launcher");
  const std::string pid = ids.substr(0, ids.find(' '));
  EXPECT_EQ(ids, pid + " " + pid) << "it is not the head of a session of its own";
  EXPECT_EQ(text_of(folder_ + "/out"),
            detach_notice({"0123456789abcdef0123456789abcdef", folder_}, std::stoi(pid)));
  EXPECT_EQ(text_of(log), "to the log\n");
}

TEST_F(DetachmentTest, TheParentExitsLikeTheLauncherInTheForeground) {
  int status = status_of(start([](Detachment&) { _exit(120); }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 120) << status;
  status = status_of(start([](Detachment&) {
    std::signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

TEST_F(DetachmentTest, ForwardsASignalFromTheParentToTheLauncher) {
  const pid_t parent = start([&](Detachment&) {
    say("ready", "");
    for (;;) pause();
  });
  EXPECT_TRUE(test::eventually([&] { return fs::exists(folder_ + "/ready"); }));
  kill(parent, SIGTERM);
  const int status = status_of(parent);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

class BackgroundOutputTest : public FolderTest, public OutputEvents {
 protected:
  Result<void> begin(Output& output, const std::vector<RankLocation>& locations) {
    std::optional<Result<void>> begun;
    output.begin(0, locations, 1, [&](const Result<void>& result) { begun = result; });
    EXPECT_TRUE(run_until([&] { return begun.has_value(); }));
    return begun.value_or(Error{Code::kDeadlineExceeded, "begin() is not ready"});
  }
  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  void output_consumed(int, std::uint64_t bytes) override { consumed_ += bytes; }
  void output_closed() override {}

  boost::asio::io_context loop_{1};
  std::uint64_t consumed_ = 0;
};

TEST_F(BackgroundOutputTest, WritesBytesToFilesAndMessagesToTheLog) {
  Options options;
  options.log_dir = folder_ + "/logs";
  Output output(loop_, options, "j", OutputTarget::kBackground, *this);
  output.print("before\n");
  ASSERT_TRUE(begin(output, {RankLocation{0, 0, 0, "h"}, RankLocation{1, 1, 0, "h"}}).ok());
  output.print("after\n");
  output.worker_bytes(1, 1, "one\n", false);
  output.worker_bytes(1, 2, "two\n", false);
  output.worker_bytes(7, 1, "nobody's\n", false);
  bool done = false;
  output.finish([&] { done = true; });
  ASSERT_TRUE(run_until([&] { return done; }));
  EXPECT_EQ(consumed_, 8u);
  EXPECT_EQ(text_of(folder_ + "/logs/j/0/rank00001.out"), "one\n");
  EXPECT_EQ(text_of(folder_ + "/logs/j/0/rank00001.err"), "two\n");
  EXPECT_EQ(output.stderr_tail(1), "two\n");
  const std::string log = text_of(LauncherLog::path_in(options.log_dir));
  EXPECT_TRUE(log.ends_with("before\nafter\n")) << log;
  EXPECT_TRUE(log.starts_with("ivyrun: job j, launcher pid ")) << log;
}

TEST_F(BackgroundOutputTest, ReportsAFolderThatCannotBeMade) {
  write("file", "");
  Options options;
  options.log_dir = folder_ + "/file/logs";
  Output output(loop_, options, "j", OutputTarget::kBackground, *this);
  EXPECT_FALSE(begin(output, {}).ok());
}

// ---- LogReader ----------------------------------------------------------------------------------

using LogReaderTest = FolderTest;

std::string read_all(LogReader& reader, std::size_t budget = 1u << 20) {
  std::string text;
  while (!reader.read(budget, [&](int rank, int stream, std::string_view bytes) {
    text += std::to_string(rank) + (stream == 1 ? ">" : "!") + std::string(bytes);
  })) {
  }
  return text;
}

TEST_F(LogReaderTest, ReadsExistingThenNewOutput) {
  write("rank00000.out", "a\n");
  write("rank00002.err", "b\n");
  LogReader reader(folder_, {0, 1, 2});
  EXPECT_EQ(read_all(reader), "0>a\n2!b\n");
  EXPECT_EQ(read_all(reader), "");
  write("rank00001.out", "c\n");
  write("rank00000.out", "d");
  EXPECT_EQ(read_all(reader), "0>d1>c\n");
  EXPECT_EQ(reader.error(), "");
}

TEST_F(LogReaderTest, LosesNothingWithASmallBudget) {
  write("rank00000.out", "0123456789");
  LogReader reader(folder_, {0});
  EXPECT_EQ(read_all(reader, 4), "0>01230>45670>89");
}

TEST_F(LogReaderTest, StartsWithTheLastLines) {
  write("rank00000.out", "1\n2\n3\n");
  write("rank00001.out", "1\n2\nunfinished");
  write("rank00002.out", "1");
  write("rank00003.out", std::string(100'000, 'x'));
  LogReader reader(folder_, {0, 1, 2});
  reader.skip_to_last(2);
  EXPECT_EQ(read_all(reader), "0>2\n3\n1>2\nunfinished2>1");
  LogReader none(folder_, {0, 1});
  none.skip_to_last(0);
  EXPECT_EQ(read_all(none), "");
  LogReader long_line(folder_, {3});
  long_line.skip_to_last(1);
  EXPECT_EQ(read_all(long_line).size(), 2 + (64u << 10));
}

TEST_F(LogReaderTest, ReportsThatThereAreNoFiles) {
  LogReader reader(folder_ + "/gone", {0});
  EXPECT_EQ(read_all(reader), "");
  EXPECT_NE(reader.error().find("/gone/rank00000.out"), std::string::npos);
}

// The pipe is not read: it stands for a file system whose server is unreachable.
TEST_F(BackgroundOutputTest, DelaysCreditAndTheEndWhileTheFileSystemStalls) {
  Options options;
  options.log_dir = folder_ + "/logs";
  std::filesystem::create_directories(folder_ + "/logs/j/0");
  const std::string path = folder_ + "/logs/j/0/rank00000.out";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  Output output(loop_, options, "j", OutputTarget::kBackground, *this);
  ASSERT_TRUE(begin(output, {RankLocation{0, 0, 0, "h"}}).ok());
  const std::string chunk(1u << 20, 'x');
  std::uint64_t given = 0;
  for (; given < 2 * RankFileSet::kMaxQueuedBytes; given += chunk.size()) {
    output.worker_bytes(0, 1, chunk, false);
    loop_.restart();
    loop_.poll();
  }
  EXPECT_LT(consumed_, RankFileSet::kMaxQueuedBytes + (2u << 20))
      << "credit for bytes that were not written";
  bool done = false;
  output.worker_bytes(0, 1, "", true);
  output.finish([&] { done = true; });
  loop_.run_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(done);
  std::uint64_t read_bytes = 0;
  ASSERT_TRUE(run_until([&] {
    char buffer[65536];
    for (ssize_t count = 0; (count = read(reader, buffer, sizeof buffer)) > 0;)
      read_bytes += static_cast<std::uint64_t>(count);
    return done;
  }));
  EXPECT_EQ(consumed_, given);
  close(reader);
}

TEST_F(BackgroundOutputTest, CanGiveUpWaitingForAFileSystem) {
  Options options;
  options.log_dir = folder_ + "/logs";
  std::filesystem::create_directories(folder_ + "/logs/j/0");
  const std::string path = folder_ + "/logs/j/0/rank00000.out";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  Output output(loop_, options, "j", OutputTarget::kBackground, *this);
  ASSERT_TRUE(begin(output, {RankLocation{0, 0, 0, "h"}}).ok());
  output.worker_bytes(0, 1, std::string(1u << 20, 'x'), false);
  bool done = false;
  output.finish([&] { done = true; });
  output.limit_finish(std::chrono::milliseconds(100));
  EXPECT_TRUE(run_until([&] { return done; }));
  close(reader);
}

TEST_F(BackgroundOutputTest, DoesNotFollowAPlantedLink) {
  write("victim", "precious");
  std::filesystem::create_directories(folder_ + "/logs");
  std::filesystem::create_symlink(folder_ + "/victim", folder_ + "/logs/ivyrun.log");
  Options options;
  options.log_dir = folder_ + "/logs";
  Output output(loop_, options, "j", OutputTarget::kBackground, *this);
  const Result<void> begun = begin(output, {});
  ASSERT_FALSE(begun.ok());
  EXPECT_NE(begun.error().message.find("ivyrun.log"), std::string::npos) << begun.error().message;
  EXPECT_EQ(text_of(folder_ + "/victim"), "precious");
}

}  // namespace
}  // namespace ivy
