// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/text.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

TEST(Text, SplitsPartsAndWords) {
  std::string_view text = "a:b::c";
  std::string parts;
  while (!text.empty()) parts += "<" + std::string(take_part(text, ':')) + ">";
  EXPECT_EQ(parts, "<a><b><><c>");
  EXPECT_EQ(words_of("  ssh -o\tX=y\n"), (std::vector<std::string_view>{"ssh", "-o", "X=y"}));
  EXPECT_TRUE(words_of(" \n").empty());
}

TEST(Text, ReadsNumbersThatFillTheText) {
  EXPECT_EQ(to_number<int>("12"), 12);
  EXPECT_EQ(to_number<int>("-3"), -3);
  for (const char* text : {"", "x", "1x", " 1", "+1", "99999999999"})
    EXPECT_FALSE(to_number<int>(text)) << text;
}

TEST(Text, ReadsAndWritesClocks) {
  EXPECT_EQ(clock_seconds("59:58"), 3598);
  EXPECT_EQ(clock_seconds("1-02:03:04"), 93784);
  for (const char* text :
       {"", "7", "1-2", "0-2:03", ":", "1:", "1:2", "1:60", "1:02:03:04", "-1:00"})
    EXPECT_FALSE(clock_seconds(text)) << text;
  EXPECT_EQ(clock_text(93784), "26:03:04");
}

TEST(Text, WritesBytesAsHexadecimalDigitsAndBack) {
  const std::string bytes("\x00\x7f\x80\xff", 4);
  EXPECT_EQ(hexadecimal(bytes), "007f80ff");
  EXPECT_EQ(from_hexadecimal("007f80ff"), bytes);
  EXPECT_TRUE(is_hexadecimal("0123456789abcdef"));
  for (const char* text : {"A0", "0x1", "0 1", "g", "-1"})
    EXPECT_FALSE(is_hexadecimal(text)) << text;
}

TEST(Text, LowersOnlyAscii) { EXPECT_EQ(lower_case("Node-7.\xc3\x84"), "node-7.\xc3\x84"); }

TEST(Text, QuotesForShells) {
  EXPECT_EQ(quoted_word("it's"), "'it'\\''s'");
  EXPECT_EQ(quoted_arguments({"a", "", "b c"}), "a '' 'b c'");
  EXPECT_EQ(with_port("::1", 80), "[::1]:80");
  EXPECT_EQ(counted(1, "host") + ", " + counted(2, "host"), "1 host, 2 hosts");
}

}  // namespace
}  // namespace ivy
