// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_values.h"

#include <gtest/gtest.h>

#include "launcher/report/label.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

TEST(OptionValuesTest, ChecksBothBoundsOfNumbers) {
  EXPECT_EQ(parse_number("1", 1, 9).value(), 1);
  EXPECT_EQ(parse_number("9", 1, 9).value(), 9);
  for (const char* bad : {"", "0", "10", "x", "1x", " 1", "+1", "1.0", "99999999999999999999"})
    EXPECT_FALSE(parse_number(bad, 1, 9).ok()) << bad;
  EXPECT_EQ(parse_number("x", 1, 9).error().message, "\"x\" is not a number from 1 to 9");
}

TEST(OptionValuesTest, NamesInvisibleCharactersInQuotes) {
  EXPECT_EQ(in_quotes("node1 \u00fc\u4e2d\U0001f600"), "\"node1 \u00fc\u4e2d\U0001f600\"");
  EXPECT_EQ(in_quotes("a\u00a0b\u2009c\u200dd\u3000"), "\"a<U+00A0>b<U+2009>c<U+200D>d<U+3000>\"");
  // Incomplete UTF-8 stays as it is.
  EXPECT_EQ(in_quotes("\xc2"), "\"\xc2\"");
  EXPECT_EQ(in_quotes("\xe2\x80"), "\"\xe2\x80\"");
}

TEST(OptionValuesTest, ParsesDurationsWithUnits) {
  const std::pair<const char*, std::int64_t> cases[] = {{"0", 0},
                                                        {"90", 90'000},
                                                        {"1.5", 1'500},
                                                        {"250ms", 250},
                                                        {"2s", 2'000},
                                                        {"30m", 1'800'000},
                                                        {"12h", 43'200'000},
                                                        {"2d", 172'800'000},
                                                        {"0.5h", 1'800'000},
                                                        {"1h30m", 5'400'000},
                                                        {"1d2h3m4.5s", 93'784'500},
                                                        {"1s500ms", 1'500},
                                                        {"10:00", 600'000},
                                                        {"90:00", 5'400'000},
                                                        {"01:00:00", 3'600'000},
                                                        {"2-00:30:00", 174'600'000},
                                                        {"365d", 31'536'000'000}};
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(parse_duration(text).value(), milliseconds(expected)) << text;
  for (const char* bad :
       {"",     "s",    "-1",      "1w",    "1 s",      "nan",       "inf",   "1e9",
        "366d", "1s5",  "1m1h",    "1m1m",  "1:2",      "1:60",      "1:2:3", ":10",
        "10:",  "1-10", "1-00:10", "+1:00", "-1:00:00", "1:00:00:00"})
    EXPECT_FALSE(parse_duration(bad).ok()) << bad;
}

TEST(OptionValuesTest, ParsesWorkersPerHost) {
  EXPECT_EQ(parse_per_host("8")->number, 8);
  EXPECT_TRUE(parse_per_host("8")->written);
  EXPECT_EQ(parse_per_host("auto")->kind, PerHost::Kind::kAuto);
  EXPECT_TRUE(parse_per_host("auto")->written);
  EXPECT_EQ(parse_per_host("gpu")->kind, PerHost::Kind::kGpu);
  EXPECT_EQ(parse_per_host("cpu")->kind, PerHost::Kind::kCpu);
  for (const char* bad : {"", "0", "-1", "XPU", "8x"})
    EXPECT_FALSE(parse_per_host(bad).ok()) << bad;
}

TEST(OptionValuesTest, ParsesRanksToShow) {
  EXPECT_TRUE(parse_show_ranks("all")->all);
  EXPECT_TRUE(parse_show_ranks("first-per-host")->first_per_host);
  EXPECT_EQ(parse_show_ranks("0,8-10,9")->ranks, (std::vector<int>{0, 8, 9, 10}));
  EXPECT_FALSE(parse_show_ranks("0")->all);
  for (const char* bad : {"", "x", "3-1", "1,", "-1", "1-", "0-999999999"})
    EXPECT_FALSE(parse_show_ranks(bad).ok()) << bad;
  std::string endless = "0-200000";
  for (int i = 0; i < 50; ++i) endless += ",0-200000";
  EXPECT_FALSE(parse_show_ranks(endless).ok());
}

TEST(OptionValuesTest, ParsesLabels) {
  for (const char* good :
       {"auto", "none", "rank", "host", "%r", "%r %R %h %l %j %a %s %%", "100%%"})
    EXPECT_EQ(parse_label(good).value(), good);
  const std::pair<const char*, const char*> cases[] = {
      {"prog", "\"prog\" is not a label"},
      {"", "\"\" is not a label"},
      {"%z", "\"%z\" is not a placeholder of a label"},
      {"%r %x", "\"%x\" is not a placeholder of a label"},
      {"%%%", "\"%\" is not a placeholder of a label"}};
  for (const auto& [text, message] : cases)
    EXPECT_EQ(parse_label(text).error().message, message) << text;
  const std::string fix = parse_label("%z").error().fix;
  for (const char letter : std::string("rtRhNnljas%"))
    EXPECT_NE(fix.find(std::string("%") + letter), std::string::npos) << letter;
}

TEST(OptionValuesTest, ParsesOutputPatterns) {
  for (const char* good : {"logs/%h-%r.log", "%4t.%s", "%j/%a/%n.%l", "out.txt", "tags"})
    EXPECT_EQ(parse_output_pattern(good).value(), good);
  const std::pair<const char*, const char*> cases[] = {
      {"", "\"\" is not a pattern of file names"},
      {"logs/", "\"logs/\" is not a pattern of file names"},
      {"tag,timestamp", "\"tag,timestamp\" is not a pattern of file names"},
      {"dir=logs", "\"dir=logs\" is not a pattern of file names"},
      {"%3z", "\"%3z\" is not a placeholder of a file name"}};
  for (const auto& [text, message] : cases)
    EXPECT_EQ(parse_output_pattern(text).error().message, message) << text;
}

TEST(OptionValuesTest, ParsesStreams) {
  for (const int bits : {0, 1, 2, 3}) EXPECT_EQ(parse_streams(std::to_string(bits))->of(7), bits);
  const StreamChoice map = parse_streams("0:1,12:2").value();
  EXPECT_EQ(map.of(0), 1);
  EXPECT_EQ(map.of(12), 2);
  EXPECT_EQ(map.of(1), 0);
  EXPECT_TRUE(map.has_any());
  EXPECT_FALSE(parse_streams("0:0,1:0")->has_any());
  for (const char* bad : {"", "4", "10", "a", "0:", ":1", "0:4", "0:1,", "1,x", "3,0:1", "0:1,0:2",
                          "10:00", "0:03", "03"})
    EXPECT_FALSE(parse_streams(bad).ok()) << bad;
  // As with srun's -t.
  EXPECT_EQ(parse_streams("10:00").error().fix, "for a time limit use --timeout 10:00");
  EXPECT_EQ(parse_streams("30").error().fix, "for a time limit use --timeout 30m");
  EXPECT_EQ(parse_streams("a").error().fix, "");
}

TEST(OptionValuesTest, NormalizesNamesOfBackends) {
  for (const char* name : {"torch", "jax", "tensorflow", "numpy", "cupy", "paddle", "mpi", "mlx",
                           "lightgbm", "horovod"})
    EXPECT_EQ(profile_name(parse_profile(name).value()), name);
  EXPECT_EQ(profile_name(parse_profile("tf").value()), "tensorflow");
}

TEST(OptionValuesTest, ParsesPortRanges) {
  EXPECT_EQ(parse_port_range("20000-20010").value(),
            std::pair(std::uint16_t{20000}, std::uint16_t{20010}));
  EXPECT_EQ(parse_port_range("29500").value(),
            std::pair(std::uint16_t{29500}, std::uint16_t{29500}));
  for (const char* bad : {"", "0", "5-4", "1-70000", "1-", "a-b"})
    EXPECT_FALSE(parse_port_range(bad).ok()) << bad;
}

TEST(OptionValuesTest, ParsesNamedValues) {
  EXPECT_EQ(words_of("  ssh -o  X=y\t"), (std::vector<std::string_view>{"ssh", "-o", "X=y"}));
  EXPECT_TRUE(words_of(" ").empty());
}

}  // namespace
}  // namespace ivy
