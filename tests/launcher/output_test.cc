// SPDX-License-Identifier: Apache-2.0
// Output on real pipes, pseudo terminals and files. Each test redirects descriptors 1 and 2 and
// restores them before it checks anything.
#include "launcher/screen/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "launcher/screen/line_splitter.h"
#include "tests/support/eventually.h"

namespace ivy {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{20};

// The reading end of standard output or error.
struct Reader {
  int fd = -1;
  std::string text;
  std::size_t max_write_bytes = 1u << 20;

  bool read_some() {
    if (fd < 0) return false;
    char buffer[65536];
    const ssize_t count = read(fd, buffer, std::min(sizeof buffer, max_write_bytes));
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    return count > 0;
  }
  void close_it() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

class OutputTest : public ::testing::Test, public OutputEvents {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    unsetenv("CLICOLOR");
    unsetenv("CLICOLOR_FORCE");
    std::fflush(stdout);
    for (int fd = 1; fd <= 2; ++fd) saved_[fd - 1] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
  }
  void TearDown() override {
    give_back();
    out_.close_it();
    err_.close_it();
  }

  void lend_pipe(int fd, Reader& reader) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    dup2(ends[1], fd);
    close(ends[1]);
    reader.fd = ends[0];
    fcntl(reader.fd, F_SETFL, O_NONBLOCK);
  }
  void lend_pipes() {
    lend_pipe(1, out_);
    lend_pipe(2, err_);
  }
  void lend_terminal() {
    int master = -1;
    int slave = -1;
    termios raw{};
    cfmakeraw(&raw);
    winsize size{};
    size.ws_col = 60;
    size.ws_row = 20;
    ASSERT_EQ(openpty(&master, &slave, nullptr, &raw, &size), 0);
    dup2(slave, 1);
    dup2(slave, 2);
    close(slave);
    out_.fd = master;
    fcntl(master, F_SETFL, O_NONBLOCK);
  }
  void lend_file(int fd, const std::string& path) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ASSERT_GE(file, 0);
    dup2(file, fd);
    close(file);
  }
  // Destroys the output and restores 1 and 2 of the test program.
  void give_back() {
    output_.reset();
    if (saved_[0] < 0) return;
    for (int fd = 1; fd <= 2; ++fd) {
      dup2(saved_[fd - 1], fd);
      close(saved_[fd - 1]);
      saved_[fd - 1] = -1;
    }
    while (out_.read_some()) {
    }
    while (err_.read_some()) {
    }
  }

  void output_consumed(int, std::uint64_t bytes) override { consumed_ += bytes; }
  void output_closed() override { ++closed_; }
  Result<void> make(const std::vector<RankLocation>& locations) {
    output_ = std::make_unique<Output>(loop_, options_, "job1", OutputTarget::kConsole, *this);
    std::optional<Result<void>> begun;
    output_->begin(0, locations, 1, [&](const Result<void>& result) { begun = result; });
    run_until([&] { return begun.has_value(); });
    return begun.value_or(Error{Code::kDeadlineExceeded, "begin() is not ready"});
  }
  Result<void> make_two_ranks() { return make({{0, 0, 0, "a"}, {1, 0, 1, "b"}}); }
  Result<void> make_one_rank() { return make({{0, 0, 0, "a"}}); }

  void give(int rank, int stream, std::string_view bytes) {
    given_ += bytes.size();
    output_->worker_bytes(rank, stream, bytes, false);
  }
  // Runs the loop and reads until the condition holds or the time has expired.
  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = steady_clock::now() + test::scaled_time(kTimeout);
    while (!condition()) {
      if (steady_clock::now() > deadline) return false;
      loop_.restart();
      const std::size_t ran = loop_.poll();
      const bool read_one = out_.read_some();
      const bool read_other = err_.read_some();
      if (ran == 0 && !read_one && !read_other) pause_briefly();
    }
    return true;
  }
  void pause_briefly() {
    pollfd entries[2] = {{out_.fd, POLLIN, 0}, {err_.fd, POLLIN, 0}};
    ::poll(entries, 2, 1);
  }
  // Runs the handlers that are ready, without reading.
  void turn() {
    loop_.restart();
    loop_.poll();
  }
  bool finish() {
    bool done = false;
    output_->finish([&done] { done = true; });
    return run_until([&done] { return done; });
  }
  bool finish_and_give_back() {
    const bool finished = finish();
    give_back();
    return finished;
  }

  boost::asio::io_context loop_;
  Options options_;
  std::unique_ptr<Output> output_;
  Reader out_;
  Reader err_;
  std::uint64_t given_ = 0;
  std::uint64_t consumed_ = 0;
  int closed_ = 0;
  int saved_[2] = {-1, -1};
};

// ---- Labels, order, partial lines -------------------------------------------------------------

TEST_F(OutputTest, LabelsLinesOfEachStream) {
  lend_pipes();
  const bool began = make_two_ranks().ok();
  give(0, 1, "one\ntwo\n");
  give(1, 2, "error\n");
  give(1, 1, "last without newline");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(began && finished);
  EXPECT_EQ(out_.text, "[ 0 a] one\n[ 0 a] two\n[ 1 b] last without newline\n");
  EXPECT_EQ(err_.text, "[!1 b] error\n");
  EXPECT_EQ(consumed_, given_);
}

TEST_F(OutputTest, PassesOneRankThroughByteForByte) {
  lend_pipes();
  (void)make_one_rank();
  const std::string odd = "\r 10%\r 20%\0\xff\xc3(\x1b]0;t\a\n\n\x1b[2Jx"s;
  give(0, 1, odd.substr(0, 7));
  const bool at_once = run_until([this] { return out_.text.size() == 7; });
  give(0, 1, odd.substr(7));
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(at_once && finished);
  EXPECT_EQ(out_.text, odd);
}

TEST_F(OutputTest, ShowsAnUnfinishedLineAfterSilenceAndNeverGluesLines) {
  lend_pipes();
  (void)make_two_ranks();
  const auto before = steady_clock::now();
  give(0, 1, "asking: ");
  const bool shown = run_until([this] { return out_.text == "[ 0 a] asking: "; });
  const auto waited = steady_clock::now() - before;
  give(1, 1, "other\n");
  give(0, 1, "answer\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(shown && finished);
  EXPECT_GE(waited, milliseconds(195));
  EXPECT_EQ(out_.text, "[ 0 a] asking: \u2026\n[ 1 b] other\n[ 0 a] answer\n");
}

TEST_F(OutputTest, ContinuesItsOwnUnfinishedLine) {
  lend_pipes();
  (void)make_two_ranks();
  give(0, 1, "asking: ");
  const bool shown = run_until([this] { return !out_.text.empty(); });
  give(0, 1, "answer\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(shown && finished);
  EXPECT_EQ(out_.text, "[ 0 a] asking: answer\n");
}

TEST_F(OutputTest, PrintsMessagesBetweenLines) {
  lend_pipe(1, out_);
  dup2(1, 2);
  (void)make_one_rank();
  give(0, 1, "half");
  output_->print("ivyrun: note\n");
  give(0, 1, "rest");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "half\nivyrun: note\nrest");
}

TEST_F(OutputTest, KeepsTheOrderOfBothStreamsInOneFile) {
  lend_pipe(1, out_);
  dup2(1, 2);
  (void)make_two_ranks();
  std::string expected;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = "line " + std::to_string(i) + "\n";
    give(0, 1 + i % 2, text);
    expected += (i % 2 == 0 ? "[ 0 a] " : "[!0 a] ") + text;
  }
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, expected);
}

TEST_F(OutputTest, CutsLinesAboveTheLimitOnly) {
  lend_pipes();
  (void)make_two_ranks();
  const std::string exact(LineSplitter::kMaxLineBytes, 'x');
  give(0, 1, exact + "\n" + exact + "y\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "[ 0 a] " + exact + "\n[ 0 a] " + exact + "\u2026\n[ 0 a] y\n");
}

TEST_F(OutputTest, KeepsNulAndInvalidUtf8) {
  lend_pipes();
  (void)make_two_ranks();
  const std::string odd = "a\0b\xff\xc3("s;
  give(0, 1, odd + "\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "[ 0 a] " + odd + "\n");
}

TEST_F(OutputTest, ShowsOnlyTheLastStateOfAProgressBarInAPipe) {
  lend_pipes();
  (void)make_two_ranks();
  for (int i = 0; i <= 100; ++i) give(0, 2, "\r" + std::to_string(i) + "%");
  give(0, 2, "\nnext\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(err_.text, "[!0 a] 100%\n[!0 a] next\n");
}

TEST_F(OutputTest, WritesTheTimeInFrontOfLines) {
  options_.timestamps = true;
  lend_pipes();
  (void)make_one_rank();
  give(0, 1, "x\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_TRUE(std::regex_match(out_.text, std::regex("\\d\\d:\\d\\d:\\d\\d\\.\\d\\d\\d x\n")))
      << out_.text;
}

TEST_F(OutputTest, ShowsOnlyTheRanksAskedFor) {
  options_.show_ranks.all = false;
  options_.show_ranks.ranks = {1};
  lend_pipes();
  (void)make_two_ranks();
  give(0, 1, "hidden\n");
  give(0, 2, "hidden error\n");
  give(1, 1, "shown");
  const std::string tail = output_->stderr_tail(0);
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "shown");
  EXPECT_EQ(err_.text, "");
  EXPECT_EQ(tail, "hidden error\n");
  EXPECT_EQ(consumed_, given_);
}

TEST_F(OutputTest, KnowsWhoseErrorsWereJustPrinted) {
  lend_pipes();
  (void)make_two_ranks();
  EXPECT_FALSE(output_->was_just_printed(0));
  give(0, 2, "one\ntwo\nthree\nfour\n");
  EXPECT_TRUE(output_->was_just_printed(0));
  EXPECT_FALSE(output_->was_just_printed(1));
  give(1, 2, "a\nb\n");
  EXPECT_TRUE(output_->was_just_printed(0));
  EXPECT_TRUE(output_->was_just_printed(1));
  give(1, 2, "c\nd\n");
  EXPECT_FALSE(output_->was_just_printed(0));
  (void)finish_and_give_back();
}

TEST_F(OutputTest, KeepsTheLastBytesOfStandardError) {
  lend_pipes();
  (void)make_one_rank();
  std::string all;
  for (int i = 0; i < 40'000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    all += line;
    give(0, 2, line);
    if (i % 1000 == 0) run_until([this] { return consumed_ == given_; });
  }
  const std::string tail = output_->stderr_tail(0);
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(tail, all.substr(all.size() - (64u << 10)));
}

TEST_F(OutputTest, KeepsLessOfEachRankInALargeJob) {
  lend_pipes();
  std::vector<RankLocation> locations;
  for (int rank = 0; rank < 4'096; ++rank) locations.push_back({rank, rank, 0, "a"});
  (void)make(locations);
  give(0, 2, std::string(100'000, 'x'));
  const std::size_t kept = output_->stderr_tail(0).size();
  EXPECT_TRUE(finish_and_give_back());
  EXPECT_EQ(kept, 8u << 10) << "a share of 32 MiB";
}

// ---- Readers ----------------------------------------------------------------------------------

TEST_F(OutputTest, NeitherBlocksNorChangesASharedDescriptor) {
  lend_pipes();
  (void)make_two_ranks();
  const std::string chunk(64u << 10, 'x');
  const auto before = steady_clock::now();
  for (int i = 0; i < 64; ++i) {
    give(0, 1, chunk + "\n");
    turn();
  }
  const auto took = steady_clock::now() - before;
  const std::uint64_t consumed_unread = consumed_;
  const int flags = fcntl(1, F_GETFL);
  const bool finished = finish_and_give_back();
  EXPECT_LT(took, std::chrono::seconds(10));
  EXPECT_LT(consumed_unread, 1u << 20) << "only what the pipe took may be granted again";
  EXPECT_EQ(flags & O_NONBLOCK, 0);
  EXPECT_TRUE(finished);
  EXPECT_EQ(consumed_, given_);
  EXPECT_GT(out_.text.size(), given_);
}

TEST_F(OutputTest, ServesASlowReaderCompletely) {
  lend_pipes();
  (void)make_two_ranks();
  out_.max_write_bytes = 777;
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = std::to_string(i) + "\n";
    give(i % 2, 1, text);
    expected += (i % 2 == 0 ? "[ 0 a] " : "[ 1 b] ") + text;
  }
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, expected);
  EXPECT_EQ(consumed_, given_);
}

TEST_F(OutputTest, ReportsAClosedReaderOnceAndDisposesOfTheRest) {
  lend_pipes();
  (void)make_two_ranks();
  give(0, 1, std::string(1u << 20, 'x') + "\n");
  turn();
  out_.close_it();
  give(1, 1, "more\n");
  const bool reported = run_until([this] { return closed_ > 0; });
  give(0, 1, "after\n");
  give(0, 2, "error\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(reported && finished);
  EXPECT_EQ(closed_, 1);
  EXPECT_EQ(consumed_, given_);
  EXPECT_EQ(err_.text, "[!0 a] error\n");
}

TEST_F(OutputTest, DropsWholeLinesOnRequest) {
  options_.overflow = OverflowChoice::kDrop;
  lend_pipes();
  (void)make_two_ranks();
  const std::string line(999, 'x');
  for (int i = 0; i < 20'000; ++i) {
    give(i % 2, 1, line + "\n");
    if (i % 100 == 0) turn();
  }
  turn();
  const std::uint64_t kept_back = given_ - consumed_;
  const bool finished = finish();
  const std::vector<std::string> output_errors = output_->output_errors();
  give_back();
  EXPECT_TRUE(finished);
  EXPECT_LT(kept_back, 3u << 20);
  EXPECT_EQ(consumed_, given_);
  ASSERT_EQ(output_errors.size(), 2u);
  const std::size_t shown =
      static_cast<std::size_t>(std::count(out_.text.begin(), out_.text.end(), '\n'));
  std::size_t lost = 0;
  for (const std::string& write_error : output_errors) lost += std::stoul(write_error);
  EXPECT_EQ(shown + lost, 20'000u);
  EXPECT_EQ(out_.text.size(), shown * (999 + 8));
  EXPECT_NE(output_errors[0].find(" lines of rank 0 not shown"), std::string::npos);
}

TEST_F(OutputTest, GivesUpOnAStalledReaderOnlyOnRequest) {
  lend_pipes();
  (void)make_two_ranks();
  give(0, 1, std::string(1u << 20, 'x'));
  bool done = false;
  output_->finish([&done] { done = true; });
  turn();
  const bool waited = !done;
  output_->limit_finish(milliseconds(50));
  const int unread = std::exchange(out_.fd, -1);
  const bool gave_up = run_until([&done] { return done; });
  out_.fd = unread;
  give_back();
  EXPECT_TRUE(waited);
  EXPECT_TRUE(gave_up);
}

// A hundred megabytes of numbered lines from two ranks, in chunks of arbitrary length.
TEST_F(OutputTest, LosesAndTearsNothingInAHundredMegabytes) {
  lend_pipes();
  (void)make_two_ranks();
  constexpr std::uint64_t kBytesEach = 50u << 20;
  constexpr std::uint64_t kWindow = 4u << 20;
  struct Source {
    std::uint64_t next = 0;
    std::uint64_t bytes = 0;
    std::string rest;
  } sources[2];
  const auto line = [](int rank, std::uint64_t number) {
    return std::to_string(number) + " of " + std::to_string(rank) +
           std::string(1 + number * 7919 % 150, static_cast<char>('a' + number % 26)) + "\n";
  };
  struct Check {
    std::uint64_t next = 0;
    std::uint64_t bytes = 0;
  } checks[2];
  std::size_t torn = 0;
  std::uint64_t seed = 12345;
  const auto check_read = [&] {
    std::size_t start = 0;
    for (std::size_t end = out_.text.find('\n'); end != std::string::npos;
         start = end + 1, end = out_.text.find('\n', start)) {
      const int rank = out_.text[start + 2] - '0';
      if (rank != 0 && rank != 1) {
        ++torn;
        continue;
      }
      const std::string expected =
          (rank == 0 ? "[ 0 a] " : "[ 1 b] ") + line(rank, checks[rank].next++);
      checks[rank].bytes += expected.size() - 7;
      if (out_.text.compare(start, end + 1 - start, expected) != 0) ++torn;
    }
    out_.text.erase(0, start);
  };
  const bool all_given = run_until([&] {
    check_read();
    for (int rank = 0; rank < 2; ++rank) {
      Source& source = sources[rank];
      while (given_ - consumed_ < kWindow && source.bytes < kBytesEach) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const std::size_t size = 1 + (seed >> 33) % 60'000;
        while (source.rest.size() < size) source.rest += line(rank, source.next++);
        give(rank, 1, source.rest.substr(0, size));
        source.rest.erase(0, size);
        source.bytes += size;
        break;
      }
    }
    return sources[0].bytes >= kBytesEach && sources[1].bytes >= kBytesEach;
  });
  for (int rank = 0; rank < 2; ++rank) give(rank, 1, sources[rank].rest);
  const bool finished = finish_and_give_back();
  check_read();
  EXPECT_TRUE(all_given && finished);
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(out_.text, "");
  EXPECT_EQ(checks[0].next, sources[0].next);
  EXPECT_EQ(checks[1].next, sources[1].next);
  EXPECT_EQ(checks[0].bytes + checks[1].bytes, given_);
  EXPECT_EQ(consumed_, given_);
}

// Another user's pipe cannot be opened again, so poll() and small writes are used.
TEST_F(OutputTest, WritesToAPipeThatItMayNotOpen) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  lend_pipes();
  const std::string line = std::string(99, 'x') + "\n";
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0 || open("/proc/self/fd/1", O_WRONLY) >= 0) _exit(3);
    (void)make_one_rank();
    for (int i = 0; i < 20'000; ++i) give(0, 1, line);
    const bool blocked_nowhere = consumed_ < given_ && (fcntl(1, F_GETFL) & O_NONBLOCK) == 0;
    bool done = false;
    output_->finish([&done] { done = true; });
    while (!done && loop_.run_one() > 0) {
    }
    _exit(blocked_nowhere && done && consumed_ == given_ ? 0 : 4);
  }
  const bool all_came = run_until([this] { return out_.text.size() == 2'000'000; });
  int status = -1;
  waitpid(child, &status, 0);
  give_back();
  EXPECT_TRUE(all_came);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(out_.text.find_first_not_of("x\n"), std::string::npos);
}

// ---- Terminals --------------------------------------------------------------------------------

TEST_F(OutputTest, ColoursLabelsAndFiltersControlStringsOnATerminal) {
  lend_terminal();
  (void)make_two_ranks();
  give(0, 1, "a\x1b]0;title\ab\x1b[2J\n");
  give(1, 1, "\x1b[31mred\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "\x1b[36m[ 0 a]\x1b[0m ab\n\x1b[32m[ 1 b]\x1b[0m \x1b[31mred\x1b[0m\n");
}

TEST_F(OutputTest, KeepsControlStringsInRawMode) {
  options_.raw = true;
  lend_terminal();
  (void)make_one_rank();
  give(0, 1, "a\x1b]0;title\ab\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "a\x1b]0;title\ab\n");
}

TEST_F(OutputTest, ClearsTheStatusLineBeforeLinesAndDrawsItAgain) {
  options_.color = ColorChoice::kNever;
  lend_terminal();
  (void)make_two_ranks();
  const bool has_terminal = output_->has_terminal();
  output_->status_line("hosts 1/2 up");
  const bool drawn = run_until([this] { return out_.text == "\r\x1b[Khosts 1/2 up"; });
  out_.text.clear();
  give(0, 1, "line\n");
  const std::string expected = "\r\x1b[K[ 0 a] line\n\r\x1b[Khosts 1/2 up";
  const bool again = run_until([&] { return out_.text == expected; });
  out_.text.clear();
  output_->status_line("");
  const bool cleared = run_until([this] { return out_.text == "\r\x1b[K"; });
  give_back();
  EXPECT_TRUE(has_terminal);
  EXPECT_TRUE(drawn);
  EXPECT_TRUE(again);
  EXPECT_TRUE(cleared) << out_.text;
}

TEST_F(OutputTest, ShowsTheNewestProgressStateBelowTheLines) {
  options_.color = ColorChoice::kNever;
  lend_terminal();
  (void)make_two_ranks();
  for (int i = 0; i <= 42; ++i) give(1, 2, "\r" + std::to_string(i) + "%");
  const bool drawn = run_until([this] { return out_.text == "\r\x1b[K[!1 b] 42%"; });
  give(0, 1, "line\n");
  give(1, 2, "\r100%\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(drawn && finished);
  EXPECT_EQ(out_.text, "\r\x1b[K[!1 b] 42%\r\x1b[K[ 0 a] line\n[!1 b] 100%\n");
}

TEST_F(OutputTest, SurvivesAStoppedTerminal) {
  options_.dedup = false;
  lend_terminal();
  (void)make_two_ranks();
  for (int i = 0; i < 2000; ++i) give(0, 1, "line " + std::to_string(i) + "\n");
  output_->status_line("waiting");
  for (int i = 0; i < 100; ++i) turn();
  const std::uint64_t consumed_unread = consumed_;
  const bool finished = finish_and_give_back();
  EXPECT_LT(consumed_unread, given_);
  EXPECT_TRUE(finished);
  EXPECT_EQ(consumed_, given_);
  EXPECT_NE(out_.text.find("line 1999\n"), std::string::npos);
}

// ---- Files ------------------------------------------------------------------------------------

class OutputFilesTest : public OutputTest {
 protected:
  void SetUp() override {
    OutputTest::SetUp();
    char name[] = "/tmp/ivy_output_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    options_.log_dir = folder_ + "/logs";
  }
  void TearDown() override {
    OutputTest::TearDown();
    std::filesystem::remove_all(folder_);
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::string folder_;
};

TEST_F(OutputFilesTest, KeepRedirectedStreamsOffTheTerminalUnlessTheyAreTeed) {
  options_.redirects.by_local_rank = {{0, 3}, {1, 2}};
  options_.tee.by_local_rank = {{0, 2}};
  options_.label = "none";
  lend_pipes();
  const bool began = make({{0, 0, 0, "a"}, {1, 1, 0, "a"}}).ok();
  give(0, 1, "file alone\n");
  give(0, 2, "both places\n");
  give(1, 1, "untouched\n");
  give(1, 2, "file alone too\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(began && finished);
  EXPECT_EQ(out_.text, "untouched\n");
  EXPECT_EQ(err_.text, "both places\n");
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00000.out"), "file alone\n");
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00000.err"), "both places\n");
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00001.err"), "file alone too\n");
  EXPECT_EQ(consumed_, given_);
}

TEST_F(OutputFilesTest, KeepRawBytesOfEveryRank) {
  options_.show_ranks.all = false;
  lend_pipes();
  const bool began = make_two_ranks().ok();
  const std::string odd = "\r10%\r20%\0\x1b]0;t\a\xff"s;
  give(0, 1, odd);
  give(1, 2, "error");
  const std::string path = output_->log_path(1, 2);
  output_->worker_bytes(1, 2, "", true);
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(began && finished);
  EXPECT_EQ(out_.text + err_.text, "");
  EXPECT_EQ(path, folder_ + "/logs/job1/0/rank00001.err");
  EXPECT_EQ(content(path), "error");
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00000.out"), odd);
}

TEST_F(OutputFilesTest, HaveNamesOfAPattern) {
  options_.output = folder_ + "/%h/%2r-%j.log";
  options_.show_ranks.all = false;
  lend_pipes();
  const bool began = make_two_ranks().ok();
  give(0, 1, "one\n");
  give(0, 2, "two\n");
  output_->worker_bytes(0, 1, "", true);
  give(0, 2, "three\n");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(began && finished);
  EXPECT_EQ(content(folder_ + "/a/00-job1.log"), "one\ntwo\nthree\n");
  EXPECT_EQ(content(folder_ + "/b/01-job1.log"), "");
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00000.err"), "two\nthree\n");
}

TEST_F(OutputFilesTest, AreNotSharedByTwoRanks) {
  options_.output = folder_ + "/%l.%s";
  lend_pipes();
  const Result<void> began = make_two_ranks();
  give_back();
  ASSERT_FALSE(began.ok());
  EXPECT_EQ(began.error().message,
            "--output: ranks 0 and 1 would write to the same file, " + folder_ + "/0.out");
  EXPECT_FALSE(std::filesystem::exists(options_.log_dir));
}

TEST_F(OutputFilesTest, ReportAFullDiskOnceAndContinue) {
  // A limit of the file size has the same effect as a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  lend_pipes();
  (void)make_two_ranks();
  rlimit few = old;
  few.rlim_cur = 2;
  setrlimit(RLIMIT_FSIZE, &few);
  give(0, 1, "one\n");
  give(1, 1, "two\n");
  give(0, 2, "e\n");
  const bool finished = finish();
  setrlimit(RLIMIT_FSIZE, &old);
  const std::vector<std::string> output_errors = output_->output_errors();
  give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(out_.text, "[ 0 a] one\n[ 1 b] two\n");
  ASSERT_EQ(output_errors.size(), 1u);
  EXPECT_NE(output_errors[0].find("rank00000.out: File too large"), std::string::npos)
      << output_errors[0];
  EXPECT_EQ(content(folder_ + "/logs/job1/0/rank00000.err"), "e\n");
}

TEST_F(OutputFilesTest, NameThePathThatCannotBeMade) {
  std::ofstream(options_.log_dir) << "a file in the way";
  lend_pipes();
  const Result<void> began = make_two_ranks();
  give_back();
  ASSERT_FALSE(began.ok());
  EXPECT_NE(began.error().message.find(folder_ + "/logs/job1/0"), std::string::npos);
}

TEST_F(OutputFilesTest, AcceptAFileAsStandardOutput) {
  options_.log_dir.clear();
  lend_file(1, folder_ + "/out.txt");
  lend_pipe(2, err_);
  (void)make_two_ranks();
  give(0, 1, "one\n");
  give(1, 1, "half");
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(finished);
  EXPECT_EQ(content(folder_ + "/out.txt"), "[ 0 a] one\n[ 1 b] half\n");
  EXPECT_EQ(consumed_, given_);
}

TEST_F(OutputFilesTest, ReportAFullDiskUnderStandardOutput) {
  options_.log_dir.clear();
  lend_file(1, "/dev/full");
  lend_pipe(2, err_);
  (void)make_two_ranks();
  give(0, 1, "one\n");
  const bool printed = run_until([this] { return !err_.text.empty(); });
  const bool finished = finish_and_give_back();
  EXPECT_TRUE(printed && finished);
  EXPECT_NE(err_.text.find("No space left on device"), std::string::npos) << err_.text;
  EXPECT_EQ(consumed_, given_);
  EXPECT_EQ(closed_, 0);
}

}  // namespace
}  // namespace ivy
