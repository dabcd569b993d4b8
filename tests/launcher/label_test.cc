// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/label.h"

#include <gtest/gtest.h>

#include "launcher/report/placeholders.h"

namespace ivy {
namespace {

LabelStyle style_of(const std::string& choice) {
  LabelStyle style;
  style.choice = choice;
  style.job_id = "abc";
  style.generation = 2;
  style.max_rank = 31;
  style.shown_ranks = 32;
  style.hosts = 4;
  style.host_width = 6;
  return style;
}

std::string label(const LabelStyle& style, int stream = 1) {
  return make_label(style, LabelSubject{7, 3, "node03", stream}, Colour::kOff);
}

TEST(LabelTest, ShowsRankAndHostOnSeveralHosts) {
  EXPECT_EQ(label(style_of("auto")), "[  7 node03] ");
  LabelStyle wider = style_of("auto");
  wider.host_width = 8;
  EXPECT_EQ(label(wider), "[  7 node03  ] ");
}

TEST(LabelTest, ShowsOnlyTheRankOnOneHost) {
  LabelStyle style = style_of("auto");
  style.hosts = 1;
  EXPECT_EQ(label(style), "[ 7] ");
  style.max_rank = 9;
  EXPECT_EQ(label(style), "[7] ");
}

TEST(LabelTest, ShowsTheAttemptIfThereMayBeSeveral) {
  LabelStyle style = style_of("auto");
  style.max_attempts = 4;
  EXPECT_EQ(label(style), "[  7 node03 #3/4] ");
  style.max_attempts = 11;
  EXPECT_EQ(label(style), "[  7 node03  #3/11] ");
  style.hosts = 1;
  EXPECT_EQ(label(style, 2), "[! 7  #3/11] ");
  style.choice = "%r:";
  EXPECT_EQ(label(style), "7:");
}

TEST(LabelTest, MarksStandardErrorWithoutColour) {
  EXPECT_EQ(label(style_of("auto"), 2), "[! 7 node03] ");
  EXPECT_EQ(label(style_of("rank"), 2), "[! 7] ");
  EXPECT_EQ(label(style_of("host"), 2), "[!node03] ");
}

TEST(LabelTest, IsEmptyForNoneAndForASingleShownRank) {
  EXPECT_EQ(label(style_of("none")), "");
  LabelStyle style = style_of("auto");
  style.shown_ranks = 1;
  EXPECT_EQ(label(style), "");
  style.choice = "rank";
  EXPECT_EQ(label(style), "[ 7] ");
}

TEST(LabelTest, FillsTemplates) {
  EXPECT_EQ(label(style_of("%r|%R|%h|%l|%j|%a|%s|%%|%q|%")), "7|00007|node03|3|abc|2|out|%|%q|%");
  EXPECT_EQ(label(style_of("%s:"), 2), "err:");
}

TEST(LabelTest, ColoursByRankAndResets) {
  const std::string text = make_label(style_of("rank"), LabelSubject{0, 0, "a", 1}, Colour::kOn);
  EXPECT_EQ(text, "\x1b[36m[ 0]\x1b[0m ");
  const std::string other = make_label(style_of("rank"), LabelSubject{1, 0, "a", 1}, Colour::kOn);
  EXPECT_EQ(other, "\x1b[32m[ 1]\x1b[0m ");
}

TEST(LabelTest, SupportsEveryPlaceholder) {
  for (const char letter : std::string("rtRhNnljas%")) {
    LabelStyle style;
    style.choice = std::string("%") + letter;
    const std::string label = make_label(style, {.rank = 0, .host = "a"}, Colour::kOff);
    EXPECT_NE(label, style.choice);
  }
  EXPECT_EQ(filled_template("%3r|%R|%2n|%%|%z|%", {.rank = 7, .host_index = 2}),
            "007|00007|02|%|%z|%");
  LabelStyle other;
  other.choice = "%z";
  EXPECT_EQ(make_label(other, {.rank = 0, .host = "a"}, Colour::kOff), "%z");
}

}  // namespace
}  // namespace ivy
