// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/progress_match.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace ivy {
namespace {

ProgressMatch steps() { return ProgressMatch(std::move(Pattern::compile("step (\\d+)")).value()); }

TEST(ProgressMatchTest, KeepsTheLargestStepOfAllRanks) {
  ProgressMatch progress = steps();
  EXPECT_EQ(progress.largest(), std::nullopt);
  progress.feed(0, 1, "step 3\nstep 12\n", false);
  progress.feed(1, 2, "step 7\nnothing\n", false);
  EXPECT_EQ(progress.largest(), 12.0);
  progress.begin();
  EXPECT_EQ(progress.largest(), std::nullopt);
}

TEST(ProgressMatchTest, ReadsLinesThatArriveInPieces) {
  ProgressMatch progress = steps();
  progress.feed(0, 1, "st", false);
  progress.feed(1, 1, "step 1", false);
  progress.feed(0, 1, "ep 4", false);
  EXPECT_EQ(progress.largest(), std::nullopt) << "step 4 may become step 42";
  progress.feed(0, 1, "2\n", false);
  EXPECT_EQ(progress.largest(), 42.0);
  progress.feed(1, 1, "00", true);
  EXPECT_EQ(progress.largest(), 100.0) << "the last line has no newline";
}

TEST(ProgressMatchTest, ReadsProgressBars) {
  ProgressMatch progress = steps();
  progress.feed(0, 2, "\rstep 5\rstep 6\r", false);
  EXPECT_EQ(progress.largest(), 6.0);
}

TEST(ProgressMatchTest, IgnoresTheRestOfALongLine) {
  ProgressMatch progress = steps();
  progress.feed(0, 1, std::string(8192, 'x') + "step 9", false);
  progress.feed(0, 1, "step 10\nstep 2\n", false);
  EXPECT_EQ(progress.largest(), 2.0);
}

}  // namespace
}  // namespace ivy
