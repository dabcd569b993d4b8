// SPDX-License-Identifier: Apache-2.0
// --progress-file: whether the newest checkpoint has moved since earlier attempts.
#include "launcher/plan/progress_file.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using enum ProgressMove;

ProgressSample file(std::string path, std::int64_t mtime_ns) {
  return {.is_known = true, .path = std::move(path), .mtime_ns = mtime_ns};
}

ProgressSample step(double number, std::int64_t mtime_ns) {
  return {.is_known = true, .path = "latest.txt", .mtime_ns = mtime_ns, .number = number};
}

ProgressSample none() { return {.is_known = true}; }

TEST(ProgressFileTest, TakesTheFirstSampleAsTheStart) {
  ProgressFile progress;
  EXPECT_EQ(progress.take(file("a.pt", 5)), kUnknown);
  EXPECT_EQ(progress.take(file("a.pt", 5)), kNone);
  EXPECT_EQ(progress.text(), "no file is newer than a.pt");
}

TEST(ProgressFileTest, CountsAFileThatAppearsAndANewerOne) {
  ProgressFile progress;
  EXPECT_EQ(progress.take(none()), kUnknown);
  EXPECT_EQ(progress.take(none()), kNone);
  EXPECT_EQ(progress.text(), "no file matches");
  EXPECT_EQ(progress.take(file("a.pt", 5)), kForward);
  EXPECT_EQ(progress.take(file("b.pt", 6)), kForward);
}

TEST(ProgressFileTest, ComparesNumbersRatherThanTimes) {
  ProgressFile progress;
  progress.take(step(1000, 5));
  EXPECT_EQ(progress.take(step(1000, 9)), kNone) << "the same number was written again";
  EXPECT_EQ(progress.text(), "latest.txt still has 1000");
  EXPECT_EQ(progress.take(step(800, 10)), kBackward);
  EXPECT_EQ(progress.text(), "latest.txt has 800, after 1000");
  EXPECT_EQ(progress.take(step(900, 11)), kBackward) << "the best number counts, not the last";
  EXPECT_EQ(progress.take(step(1001, 4)), kForward);
}

TEST(ProgressFileTest, ComparesTimesIfOneFileHasNoNumber) {
  ProgressFile progress;
  progress.take(step(1000, 5));
  EXPECT_EQ(progress.take(file("latest.txt", 6)), kForward);
}

TEST(ProgressFileTest, NamesFilesThatMoveBackwards) {
  ProgressFile progress;
  progress.take(file("b.pt", 6));
  EXPECT_EQ(progress.take(file("b.pt", 5)), kBackward);
  EXPECT_EQ(progress.text(), "b.pt is older than before");
  EXPECT_EQ(progress.take(file("a.pt", 5)), kBackward);
  EXPECT_EQ(progress.text(), "the newest file is a.pt, which is older than b.pt was");
  EXPECT_EQ(progress.take(none()), kBackward);
  EXPECT_EQ(progress.text(), "no file matches any longer");
}

TEST(ProgressFileTest, DrawsNoConclusionFromFilesThatCannotBeRead) {
  ProgressFile progress;
  EXPECT_EQ(progress.take({}), kUnknown);
  EXPECT_EQ(progress.text(), "its files could not be read");
  EXPECT_EQ(progress.take(file("a.pt", 5)), kUnknown);
  EXPECT_EQ(progress.take({}), kUnknown);
  EXPECT_EQ(progress.take(file("a.pt", 5)), kNone);
}

TEST(ProgressFileTest, ReadsOnlyWholeNumbers) {
  EXPECT_EQ(number_in_file("1000\n"), 1000);
  EXPECT_EQ(number_in_file(" 1.5e3 "), 1500);
  EXPECT_EQ(number_in_file("0"), 0);
  for (const char* text : {"", "\n", "release", "12 of 20", "nan", "inf", "0x10"})
    EXPECT_EQ(number_in_file(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ivy
