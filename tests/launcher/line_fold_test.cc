// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/line_fold.h"

#include <gtest/gtest.h>

#include <random>

#include "launcher/report/folded_ranks.h"

namespace ivy {
namespace {

constexpr std::int64_t kSoon = LineFold::kWindowNs / 2;

std::string shown(const LineFold::Group& group) {
  return std::string(group.stream == 2 ? "!" : "") + folded_ranks(group.ranks) + " " + group.text;
}

// Returns all lines that are due, one group a line.
std::string due(LineFold& fold, std::int64_t now_ns) {
  std::string text;
  while (const auto group = fold.take_due(now_ns)) text += shown(*group) + "\n";
  return text;
}

TEST(LineFold, FoldsOneLineOfManyRanks) {
  LineFold fold;
  fold.set_rank_count(4);
  for (const int rank : {3, 0, 1}) fold.add(rank, 1, "loss 1", rank);
  EXPECT_EQ(due(fold, kSoon), "");
  EXPECT_EQ(due(fold, LineFold::kWindowNs + 3), "0-1,3 loss 1\n");
  EXPECT_TRUE(fold.is_empty());
}

TEST(LineFold, FlushesWhenAllRanksHavePrintedTheLine) {
  LineFold fold;
  fold.set_rank_count(2);
  fold.add(0, 1, "a", 0);
  EXPECT_EQ(due(fold, 1), "");
  fold.add(1, 1, "a", 1);
  EXPECT_EQ(due(fold, 1), "0-1 a\n");
}

TEST(LineFold, KeepsTheOrderOfEachRank) {
  LineFold fold;
  fold.set_rank_count(3);
  fold.add(0, 1, "a", 0);
  fold.add(0, 1, "b", 1);
  fold.add(1, 1, "b", 2);
  fold.add(1, 1, "a", 3);  // Not into the first group, which would precede this rank's "b".
  EXPECT_EQ(due(fold, 10 * LineFold::kWindowNs), "0 a\n0-1 b\n1 a\n");
}

TEST(LineFold, MatchesRepeatedLinesOneByOne) {
  LineFold fold;
  fold.set_rank_count(2);
  for (const int rank : {0, 0, 1, 1}) fold.add(rank, 1, "x", 0);
  EXPECT_EQ(due(fold, 0), "0-1 x\n0-1 x\n");
}

TEST(LineFold, FoldsTracebacksAsOneText) {
  LineFold fold;
  fold.set_rank_count(3);
  const char* lines[] = {"Traceback (most recent call last):", "  File \"a.py\", line 1",
                         "KeyboardInterrupt"};
  // Two ranks print the same traceback interleaved, a third one prints another.
  for (const char* line : lines)
    for (const int rank : {0, 1}) fold.add(rank, 2, line, 0);
  for (const char* line : {lines[0], "  File \"b.py\", line 2", "ValueError: x"})
    fold.add(2, 2, line, 0);
  EXPECT_EQ(due(fold, 10 * LineFold::kWindowNs),
            "!0-1 Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyboardInterrupt\n"
            "!2 Traceback (most recent call last):\n  File \"b.py\", line 2\nValueError: x\n");
  EXPECT_TRUE(fold.is_empty());
}

TEST(LineFold, FlushesAnUnfinishedTracebackInTime) {
  LineFold fold;
  fold.set_rank_count(2);
  fold.add(0, 2, "Traceback (most recent call last):", 0);
  fold.add(0, 1, "other", 1);
  fold.add(0, 2, "  File", 2);
  EXPECT_EQ(due(fold, 10 * LineFold::kWindowNs),
            "!0 Traceback (most recent call last):\n  File\n0 other\n");
  fold.add(0, 2, "ValueError", 3);
  EXPECT_EQ(due(fold, 10 * LineFold::kWindowNs), "!0 ValueError\n");
}

TEST(LineFold, SeparatesStreams) {
  LineFold fold;
  fold.set_rank_count(2);
  fold.add(0, 1, "x", 0);
  fold.add(1, 2, "x", 0);
  EXPECT_EQ(due(fold, LineFold::kWindowNs), "0 x\n!1 x\n");
}

TEST(LineFold, FlushesHeldLinesBeforeARankWritesAgain) {
  LineFold fold;
  fold.set_rank_count(3);
  fold.add(0, 1, "a", 0);
  fold.add(1, 1, "b", 0);
  fold.add(2, 1, "c", 0);
  std::string text;
  while (const auto group = fold.take_if_printed_by(1)) text += shown(*group) + "\n";
  EXPECT_EQ(text, "0 a\n1 b\n");
  EXPECT_FALSE(fold.is_empty());
}

TEST(LineFold, HoldsABoundedAmount) {
  LineFold fold;
  fold.set_rank_count(100);
  const std::string line(64u << 10, 'x');
  for (int rank = 0; rank < 40; ++rank) {
    fold.add(rank, 1, line + std::to_string(rank), 0);
    due(fold, 0);
  }
  std::size_t held = 0;
  while (const auto group = fold.take_oldest()) held += group->text.size();
  EXPECT_LE(held, LineFold::kMaxBytes);
}

// For any input: no line is lost, duplicated or late, and each rank's lines keep their order.
TEST(LineFold, LosesNothing) {
  std::mt19937 random(7);
  LineFold fold;
  fold.set_rank_count(4);
  std::vector<std::string> printed(4), seen(4);
  const auto take = [&](const LineFold::Group& group, std::int64_t now) {
    EXPECT_LE(now, group.since_ns + LineFold::kWindowNs + 10'000'000);
    for (const int rank : group.ranks) seen[static_cast<std::size_t>(rank)] += group.text;
  };
  std::int64_t now = 0;
  for (int step = 0; step < 20'000; ++step, now += 10'000'000) {
    const int rank = static_cast<int>(random() % 4);
    const std::string text(1, static_cast<char>('a' + random() % 3));
    printed[static_cast<std::size_t>(rank)] += text;
    fold.add(rank, 1, text, now);
    while (const auto group = fold.take_due(now)) take(*group, now);
  }
  while (const auto group = fold.take_oldest()) take(*group, group->since_ns);
  EXPECT_EQ(printed, seen);
}

}  // namespace
}  // namespace ivy
