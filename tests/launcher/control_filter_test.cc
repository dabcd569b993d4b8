// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/control_filter.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

struct Row {
  const char* name;
  std::string input;
  std::string no_strings;
  std::string colours_only;
};

const Row kRows[] = {
    {"text", "plain \t\xff text\n", "plain \t\xff text\n", "plain \t\xff text\n"},
    {"title by BEL", "a\x1b]0;title\ab\n", "ab\n", "ab\n"},
    {"clipboard by ST", "a\x1b]52;c;AAAA\x1b\\b", "ab", "ab"},
    {"DCS", "a\x1bPq#0\x1b\\b", "ab", "ab"},
    {"APC", "a\x1b_Gx\x1b\\b", "ab", "ab"},
    {"PM", "a\x1b^x\x1b\\b", "ab", "ab"},
    {"SOS", "a\x1bXx\x1b\\b", "ab", "ab"},
    {"C1 OSC in UTF-8",
     "a\xc2\x9d"
     "0;t\xc2\x9c"
     "b",
     "ab", "ab"},
    {"C1 CSI in UTF-8",
     "a\xc2\x9b"
     "31mb",
     "a\x1b[31mb", "a\x1b[31mb"},
    {"no C1", "\xc2\xa9", "\xc2\xa9", "\xc2\xa9"},
    {"colour", "\x1b[1;38:5:9mred\x1b[0m", "\x1b[1;38:5:9mred\x1b[0m", "\x1b[1;38:5:9mred\x1b[0m"},
    {"cursor", "a\x1b[2Bb\x1b[K", "a\x1b[2Bb\x1b[K", "ab"},
    {"keyboard mode", "\x1b[>4;2mx", "\x1b[>4;2mx", "x"},
    {"reset",
     "a\x1b"
     "cb",
     "a\x1b"
     "cb",
     "ab"},
    {"charset", "a\x1b(0b", "a\x1b(0b", "ab"},
    {"shift out",
     "a\x0e"
     "b\f",
     "a\x0e"
     "b\f",
     "ab"},
    {"newline ends a string", "a\x1b]0;evil\nb\n", "a\nb\n", "a\nb\n"},
    {"newline ends a sequence", "a\x1b[3\nb", "a\nb", "a\nb"},
    {"escape ends a string", "a\x1b]0;t\x1b[31mb", "a\x1b[31mb", "a\x1b[31mb"},
    {"string in string", "a\x1b]0;t\x1b]1;u\ab", "ab", "ab"},
    {"cancelled",
     "a\x1b]0;t\x18"
     "b",
     "ab", "ab"},
    {"raw C1 OSC",
     "a\x9d"
     "0;t\x9c"
     "b",
     "ab", "ab"},
    {"raw C1 OSC by BEL behind a cut character",
     "a\xe2\x9d"
     "z\x9d"
     "0;t\ab",
     "a\xe2\x9dzb", "a\xe2\x9dzb"},
    {"raw C1 DCS",
     "a\x90q#0\x9c"
     "b",
     "ab", "ab"},
    {"raw C1 CSI",
     "a\x9b"
     "31mb",
     "a\x1b[31mb", "a\x1b[31mb"},
    {"raw C1 next line",
     "a\x85"
     "b",
     "a\x85"
     "b",
     "ab"},
    {"C1 reverse line feed in UTF-8",
     "a\xc2\x8d"
     "b",
     "a\xc2\x8d"
     "b",
     "ab"},
    {"C1 bytes inside of characters", "\xe2\x96\x88\xc4\x9d\xf0\x9f\x98\x90 \xe2\x80\x9c\xd0\x9f",
     "\xe2\x96\x88\xc4\x9d\xf0\x9f\x98\x90 \xe2\x80\x9c\xd0\x9f",
     "\xe2\x96\x88\xc4\x9d\xf0\x9f\x98\x90 \xe2\x80\x9c\xd0\x9f"},
    {"C1 bytes inside of a string's characters", "a\x1b]0;\xc4\x9c title\ab", "ab", "ab"},
    {"enquiry",
     "a\x05"
     "b",
     "ab", "ab"},
    {"over the label", "a\b\b\b\b\b[ 7] b", "a\b\b\b\b\b[ 7] b", "a[ 7] b"},
    {"broken sequence",
     "a\x1b[3\x01"
     "b",
     "ab", "ab"},
};

std::string filtered(ControlPolicy policy, const std::string& input, std::size_t chunk) {
  ControlFilter filter(policy);
  std::string out;
  for (std::size_t at = 0; at < input.size(); at += chunk)
    out += filter.apply(std::string_view(input).substr(at, chunk));
  return out;
}

TEST(ControlFilterTest, RemovesTerminalCommandsForEveryChunking) {
  for (const Row& row : kRows) {
    for (std::size_t chunk = 1; chunk <= row.input.size(); ++chunk) {
      EXPECT_EQ(filtered(ControlPolicy::kNoStrings, row.input, chunk), row.no_strings)
          << row.name << ", chunks of " << chunk;
      // None of these inputs moves the cursor up, so both policies give the same result.
      for (const ControlPolicy policy : {ControlPolicy::kColoursOnly, ControlPolicy::kColoursAndUp})
        EXPECT_EQ(filtered(policy, row.input, chunk), row.colours_only)
            << row.name << ", chunks of " << chunk;
    }
  }
}

TEST(ControlFilterTest, ForgetsAnEndlessSequence) {
  const std::string input = "\x1b[" + std::string(1000, '1') + "m" + "x\n";
  const std::string out = filtered(ControlPolicy::kNoStrings, input, 7);
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
  EXPECT_TRUE(out.ends_with("x\n"));
}

TEST(ControlFilterTest, KeepsOnlyColoursAndCursorMovesInPipes) {
  struct {
    std::string input, output;
  } const rows[] = {
      {"a\x1b[2Ab\x1b[Kc\x1b[3Fd", "a\x1b[2Abc\x1b[3Fd"},
      {"\x1b[?25l\x1b[H\x1b[2J\x1b[1;31mred\x1b[0m\x1b[5G\x1b[B", "\x1b[1;31mred\x1b[0m"},
      {"\x1b]8;;u\x1b\\link \b\x05\x85\xff\xc2\x9b 1\x1b(0\x1b\x1b[Kz",
       "\x1b]8;;u\x1b\\link \b\x05\x85\xff\xc2\x9b 1\x1b(0\x1bz"},
      {"cut\x1b[3\nnext", "cut\nnext"},
  };
  for (const auto& row : rows)
    for (std::size_t chunk = 1; chunk <= row.input.size(); ++chunk)
      EXPECT_EQ(filtered(ControlPolicy::kPiped, row.input, chunk), row.output)
          << row.input << ", chunks of " << chunk;
  EXPECT_EQ(filtered(ControlPolicy::kColoursAndUp, "a\x1b[2Ab\x1b[Kc\x1b[>1A", 3), "a\x1b[2Abc");
}

// A terminal moves its cursor for these sequences too.
TEST(ControlFilterTest, RemovesMovesUpThatTheLineSplitterDoesNotTakeOut) {
  for (const ControlPolicy policy : {ControlPolicy::kColoursAndUp, ControlPolicy::kPiped})
    for (const char* move : {"\x1b[1;2A", "\x1b[:A", "\x1b[;F"})
      EXPECT_EQ(filtered(policy, std::string("a") + move + "b", 3), "ab") << move + 1;
}

}  // namespace
}  // namespace ivy
