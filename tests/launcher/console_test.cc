// SPDX-License-Identifier: Apache-2.0
// One console on a pipe, a pseudo terminal or /dev/full; the test owns its lanes.
#include "launcher/screen/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <regex>

#include "tests/support/eventually.h"

namespace ivy {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{20};

class ConsoleTest : public ::testing::Test, public ConsoleEvents {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    sources_[0].label = "[0] ";
    sources_[1].label = "[1] ";
    sources_[1].host_index = 1;
  }
  void TearDown() override {
    console_.reset();
    for (const int fd : {read_fd_, write_fd_})
      if (fd >= 0) close(fd);
  }
  void open_pipe() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_fd_ = ends[0];
    start(ends[1]);
  }
  void open_terminal() {
    termios raw{};
    cfmakeraw(&raw);
    winsize size{};
    size.ws_col = 20;
    size.ws_row = 20;
    int slave = -1;
    ASSERT_EQ(openpty(&read_fd_, &slave, nullptr, &raw, &size), 0);
    start(slave);
    style_.is_terminal = true;
    console_->set_style(style_);
  }
  void start(int write_fd) {
    write_fd_ = write_fd;
    if (read_fd_ >= 0) fcntl(read_fd_, F_SETFL, O_NONBLOCK);
    console_ = std::make_unique<Console>(loop_, write_fd, *this);
    console_->set_style(style_);
  }
  void console_consumed(int host, std::uint64_t bytes) override { consumed_[host] += bytes; }
  void console_has_room() override { ++rooms_; }
  void console_failed(int errno_value) override { failure_ = errno_value; }
  void close_reader() {
    close(read_fd_);
    read_fd_ = -1;
  }
  void read_some() {
    char buffer[65536];
    for (ssize_t count = 0; (count = read(read_fd_, buffer, sizeof buffer)) > 0;)
      text_.append(buffer, static_cast<std::size_t>(count));
  }
  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = steady_clock::now() + test::scaled_time(kTimeout);
    while (!condition()) {
      if (steady_clock::now() > deadline) return false;
      loop_.restart();
      const std::size_t ran = loop_.poll();
      if (read_fd_ >= 0) read_some();
      pollfd entry{read_fd_, POLLIN, 0};
      if (ran == 0) ::poll(&entry, 1, 1);
    }
    return true;
  }
  // Flushes the console and returns its output.
  std::string shown() {
    console_->flush();
    EXPECT_TRUE(run_until([this] { return console_->is_idle(); }));
    read_some();
    return text_;
  }
  void show(int source, std::string_view bytes) { console_->show(sources_[source], bytes); }

  boost::asio::io_context loop_;
  ConsoleStyle style_;
  std::unique_ptr<Console> console_;
  OutputSource sources_[2];
  int read_fd_ = -1;
  int write_fd_ = -1;
  std::string text_;
  std::uint64_t consumed_[2] = {0, 0};
  int rooms_ = 0;
  int failure_ = 0;
};

TEST_F(ConsoleTest, LabelsWholeLinesAndKeepsTheRest) {
  open_pipe();
  show(0, "one\nha");
  show(1, "other\n");
  EXPECT_EQ(shown(), "[0] one\n[1] other\n");
  show(0, "lf\n");
  EXPECT_EQ(shown(), "[0] one\n[1] other\n[0] half\n");
}

TEST_F(ConsoleTest, MarksAnUnfinishedLineBeforeALineOfAnotherRank) {
  for (const bool utf8 : {true, false}) {
    TearDown();
    text_.clear();
    sources_[0] = sources_[1] = OutputSource{};
    SetUp();
    style_.utf8 = utf8;
    open_pipe();
    show(0, "asking: ");
    console_->show_partial(sources_[0]);
    show(0, "yes\n");
    show(0, "again: ");
    console_->show_partial(sources_[0]);
    show(1, "other\n");
    show(0, "\nnext\n");
    const std::string marker = utf8 ? "\u2026" : "...";
    EXPECT_EQ(shown(), "[0] asking: yes\n[0] again: " + marker + "\n[1] other\n[0] next\n");
  }
}

TEST_F(ConsoleTest, ShowsNothingWithoutAnUnfinishedLine) {
  open_pipe();
  console_->show_partial(sources_[0]);
  console_->show_state(sources_[0]);
  console_->end_source(sources_[0]);
  console_->cut_source(sources_[0]);
  console_->print("");
  EXPECT_EQ(shown(), "");
}

TEST_F(ConsoleTest, EndsTheLineAtTheEndOfAStream) {
  open_pipe();
  show(0, "last");
  console_->end_source(sources_[0]);
  show(1, "dropped from here");
  console_->cut_source(sources_[1]);
  EXPECT_EQ(shown(), "[0] last\n[1] dropped from here\u2026\n");
}

TEST_F(ConsoleTest, PrintsMessagesOnSeparateLines) {
  open_pipe();
  show(0, "half");
  console_->show_partial(sources_[0]);
  console_->print("ivyrun: a");
  console_->print("ivyrun: b\n");
  EXPECT_EQ(shown(), "[0] half\u2026\nivyrun: a\nivyrun: b\n");
}

TEST_F(ConsoleTest, EndsTheLineOfAForgottenLane) {
  open_pipe();
  show(0, "half");
  console_->show_partial(sources_[0]);
  console_->forget_sources();
  console_->print("next");
  EXPECT_EQ(shown(), "[0] half\u2026\nnext\n");
}

TEST_F(ConsoleTest, PassesThroughByteForByte) {
  style_.pass_through = true;
  open_pipe();
  show(0, std::string_view("\r1%\r2%\0\xff", 8));
  console_->print("ivyrun: a");
  show(0, "x");
  console_->end_source(sources_[0]);
  EXPECT_EQ(shown(), std::string("\r1%\r2%\0\xff", 8) + "\nivyrun: a\nx");
}

TEST_F(ConsoleTest, FiltersControlsOnRequest) {
  style_.filters_controls = true;
  open_pipe();
  show(0, "a\x1b]0;title\x07z\n");
  EXPECT_EQ(shown(), "[0] az\n");
}

TEST_F(ConsoleTest, RemovesCursorMovesFromLabelledLinesOnly) {
  style_.filters_moves = true;
  open_pipe();
  for (OutputSource& source : sources_) source.filter = ControlFilter(ControlPolicy::kPiped);
  sources_[1].label.clear();
  show(0, "\x1b[31ma\x1b[0m\x1b[2K\x1b[5Gz\n");
  show(1, "\x1b[31ma\x1b[0m\x1b[2K\x1b[5Gz\n");
  EXPECT_EQ(shown(), "[0] \x1b[31ma\x1b[0mz\n\x1b[31ma\x1b[0m\x1b[2K\x1b[5Gz\n");
}

TEST_F(ConsoleTest, PrintsTimestampsBeforeTheLabel) {
  style_.timestamps = true;
  open_pipe();
  show(0, "one\n");
  EXPECT_TRUE(
      std::regex_match(shown(), std::regex("\\d\\d:\\d\\d:\\d\\d\\.\\d\\d\\d \\[0\\] one\n")))
      << text_;
}

TEST_F(ConsoleTest, CountsBytesAsConsumedWhenTheirLinesAreWritten) {
  open_pipe();
  show(0, "one\n");
  show(1, "three\n");
  EXPECT_EQ(consumed_[0] + consumed_[1], 0u);
  (void)shown();
  EXPECT_EQ(consumed_[0], 4u);
  EXPECT_EQ(consumed_[1], 6u);
  // The kept bytes of an unfinished line count too; otherwise a host with long lines would stop.
  show(0, "unfinished");
  (void)shown();
  EXPECT_EQ(consumed_[0], 14u);
}

TEST_F(ConsoleTest, HasNoRoomWhileItsReaderPauses) {
  open_pipe();
  const std::string line = std::string(999, 'x') + "\n";
  std::uint64_t given = 0;
  while (console_->has_room()) {
    show(0, line);
    given += line.size();
    console_->flush();
    ASSERT_LT(given, 64u << 20) << "it never becomes full";
  }
  EXPECT_LT(consumed_[0], given);
  EXPECT_GT(console_->unwritten(), 0u);
  EXPECT_TRUE(run_until([this] { return console_->is_idle(); }));
  EXPECT_TRUE(console_->has_room());
  EXPECT_EQ(consumed_[0], given);
  EXPECT_GT(rooms_, 0);
  EXPECT_EQ(console_->written(), given / line.size() * (line.size() + 4));
}

TEST_F(ConsoleTest, ReportsAClosedReaderOnceAndDropsTheRest) {
  open_pipe();
  close_reader();
  show(0, "one\n");
  console_->flush();
  EXPECT_TRUE(run_until([this] { return failure_ != 0; }));
  EXPECT_EQ(failure_, EPIPE);
  EXPECT_TRUE(console_->has_failed());
  failure_ = 0;
  show(0, "two\n");
  console_->flush();
  EXPECT_TRUE(console_->is_idle());
  EXPECT_EQ(failure_, 0);
  EXPECT_EQ(consumed_[0], 8u);
}

TEST_F(ConsoleTest, ReportsAFullDisk) {
  start(open("/dev/full", O_WRONLY | O_CLOEXEC));
  show(0, "one\n");
  console_->flush();
  EXPECT_TRUE(run_until([this] { return failure_ != 0; }));
  EXPECT_EQ(failure_, ENOSPC);
  EXPECT_EQ(consumed_[0], 4u);
}

// ---- Terminals ---------------------------------------------------------------------------------

TEST_F(ConsoleTest, ReplacesTheStatusLineAndClearsItForLines) {
  open_terminal();
  console_->set_status("waiting");
  EXPECT_TRUE(console_->footer_is_due());
  console_->draw_footer();
  EXPECT_FALSE(console_->footer_is_due());
  EXPECT_EQ(shown(), "\r\x1b[Kwaiting");
  console_->set_status("waiting");
  EXPECT_FALSE(console_->footer_is_due());
  text_.clear();
  show(0, "line\n");
  EXPECT_EQ(shown(), "\r\x1b[K[0] line\n");
  EXPECT_TRUE(console_->footer_is_due());
  text_.clear();
  console_->set_status("a status that is too long");
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[Ka status that is to");
  text_.clear();
  console_->set_status("");
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K");
}

TEST_F(ConsoleTest, DelaysTheStatusUntilTheLineIsFinished) {
  open_terminal();
  show(0, "half");
  console_->show_partial(sources_[0]);
  console_->set_status("waiting");
  console_->draw_footer();
  EXPECT_EQ(shown(), "[0] half");
  EXPECT_TRUE(console_->footer_is_due());
}

TEST_F(ConsoleTest, ShowsProgressInTheFooterUntilItsLineEnds) {
  open_terminal();
  show(0, "10%\r20%");
  EXPECT_TRUE(sources_[0].state_is_new);
  console_->show_state(sources_[0]);
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K[0] 20%");
  text_.clear();
  show(0, "\r100%\n");
  EXPECT_EQ(shown(), "\r\x1b[K[0] 100%\n");
  text_.clear();
  console_->draw_footer();
  EXPECT_EQ(shown(), "");
}

TEST_F(ConsoleTest, ShowsABarForEachOfAFewRanks) {
  open_terminal();
  for (const int rank : {0, 1}) {
    sources_[rank].rank = rank;
    show(rank, "10%\r" + std::to_string(20 + rank) + "%");
    console_->show_state(sources_[rank]);
  }
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K[0] 20%\n[1] 21%");
  text_.clear();
  show(1, "\rdone\n");
  EXPECT_EQ(shown(), "\r\x1b[K\x1b[A\r\x1b[K[1] done\n");
  text_.clear();
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K[0] 20%");
  text_.clear();
  // A bar that erases itself leaves no line.
  show(0, "\r    ");
  console_->show_state(sources_[0]);
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K");
}

// The output of tqdm for an inner bar below an outer one.
std::string nested(int outer, int inner) {
  return "\router " + std::to_string(outer) + "%\n\rinner " + std::to_string(inner) + "%\x1b[A";
}

TEST_F(ConsoleTest, ShowsBarsInsideBarsWithoutScrolling) {
  open_terminal();
  for (const int rank : {0, 1}) {
    sources_[rank].rank = rank;
    sources_[rank].lines.set_groups(true);
    for (int step = 0; step < 10; ++step) show(rank, nested(step, 2 * step));
    console_->show_state(sources_[rank]);
  }
  // The first states were printed above, because the group was not known yet.
  EXPECT_EQ(shown(), "[0] outer 0%\n[1] outer 0%\n");
  text_.clear();
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K[0] outer 9%\n[0] inner 18%\n[1] outer 9%\n[1] inner 18%");
  text_.clear();
  // Five bars are too many, so only the outer ones are shown.
  show(0, "\n\n\rthird\x1b[A\x1b[A\n\n\rthird\x1b[2A");
  console_->show_state(sources_[0]);
  console_->draw_footer();
  EXPECT_TRUE(shown().ends_with("\r\x1b[K[0] outer 9%\n[1] outer 9%")) << text_;
}

TEST_F(ConsoleTest, ShowsBarsInsideBarsInAPipeByTheirNewestState) {
  open_pipe();
  sources_[0].lines.set_groups(true);
  for (int step = 0; step < 10; ++step) show(0, nested(step, 2 * step));
  console_->show_state(sources_[0]);
  EXPECT_EQ(shown(), "[0] outer 0%\n[0] outer 9%\n[0] inner 18%\n");
  text_.clear();
  show(0, "\n\r        \r\x1b[A\router 100%\n");
  console_->end_source(sources_[0]);
  EXPECT_EQ(shown(), "[0] outer 100%\n");
}

TEST_F(ConsoleTest, ShowsTheSlowestBarOfManyRanks) {
  open_terminal();
  OutputSource sources[5];
  for (int rank = 0; rank < 5; ++rank) {
    sources[rank].rank = rank;
    console_->show(sources[rank], "9%\r" + std::to_string(rank == 3 ? 7 : 40) + "% in 123456789");
    console_->show_state(sources[rank]);
  }
  console_->draw_footer();
  EXPECT_EQ(shown(), "\r\x1b[K7 (slowest of 5 bars)");
}

TEST_F(ConsoleTest, PrintsAStateAsALineWithoutATerminal) {
  open_pipe();
  show(0, "10%\r20%");
  console_->show_state(sources_[0]);
  console_->set_status("waiting");
  EXPECT_FALSE(console_->footer_is_due());
  console_->draw_footer();
  EXPECT_EQ(shown(), "[0] 20%\n");
}

TEST_F(ConsoleTest, ResetsAWorkersColourAtTheEndOfItsLine) {
  open_terminal();
  show(0, "\x1b[31mred\nplain\n");
  EXPECT_EQ(shown(), "[0] \x1b[31mred\x1b[0m\n[0] plain\n");
}

}  // namespace
}  // namespace ivy
