// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/line_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy {
namespace {

using namespace std::string_literals;

constexpr std::size_t kMax = LineSplitter::kMaxLineBytes;

// Returns each piece, with "~" before a continued one and "+" after one that was cut.
std::vector<std::string> pieces(LineSplitter& splitter, std::string_view bytes) {
  std::vector<std::string> out;
  while (const auto piece = splitter.next(bytes))
    out.push_back((piece->continued ? "~" : "") + std::string(piece->text) +
                  (piece->end == LineEnd::kTooLong ? "+" : ""));
  EXPECT_TRUE(bytes.empty());
  return out;
}

using Pieces = std::vector<std::string>;

TEST(LineSplitterTest, SplitsAtNewlinesAndKeepsTheRest) {
  LineSplitter splitter;
  EXPECT_EQ(pieces(splitter, "one\n\ntwo\nthr"), (Pieces{"one", "", "two"}));
  EXPECT_EQ(splitter.partial(), "thr");
  EXPECT_EQ(pieces(splitter, "ee\nfour"), (Pieces{"three"}));
  const auto last = splitter.finish();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->text, "four");
  EXPECT_FALSE(splitter.finish().has_value());
}

TEST(LineSplitterTest, GivesTheSameLinesForEveryChunking) {
  const std::string text = "a\nbb\r\n\nccc\rddd\n\reee\n\xff\xfe\0x\nlast"s;
  LineSplitter whole;
  const Pieces expected = pieces(whole, text);
  for (std::size_t chunk = 1; chunk < text.size(); ++chunk) {
    LineSplitter splitter;
    Pieces all;
    for (std::size_t at = 0; at < text.size(); at += chunk)
      for (std::string& piece : pieces(splitter, text.substr(at, chunk)))
        all.push_back(std::move(piece));
    EXPECT_EQ(all, expected) << "chunks of " << chunk;
    EXPECT_EQ(splitter.partial(), whole.partial());
  }
}

TEST(LineSplitterTest, EndsALineAtCarriageReturnNewline) {
  LineSplitter splitter;
  EXPECT_EQ(pieces(splitter, "dos\r\nx\r"), (Pieces{"dos"}));
  EXPECT_EQ(pieces(splitter, "\ny\r\r\n"), (Pieces{"x", "y"}));
  EXPECT_FALSE(splitter.is_update());
}

TEST(LineSplitterTest, KeepsOnlyTheNewestStateOfAnUpdatedLine) {
  LineSplitter splitter;
  EXPECT_EQ(pieces(splitter, "\r10%\r20%"), Pieces{});
  EXPECT_TRUE(splitter.is_update());
  EXPECT_EQ(splitter.partial(), "20%");
  EXPECT_EQ(pieces(splitter, "\r30%\r"), Pieces{});
  EXPECT_EQ(splitter.partial(), "30%");
  EXPECT_EQ(pieces(splitter, "100%\nnext\n"), (Pieces{"100%", "next"}));
  EXPECT_FALSE(splitter.is_update());
}

TEST(LineSplitterTest, MarksTheContinuationOfAShownLine) {
  LineSplitter splitter;
  pieces(splitter, "begin ");
  EXPECT_EQ(splitter.take_partial(), "begin ");
  EXPECT_FALSE(splitter.has_partial());
  EXPECT_EQ(pieces(splitter, "end\nnext\n"), (Pieces{"~end", "next"}));
}

TEST(LineSplitterTest, EndsAShownLineThatIsThenOverwritten) {
  LineSplitter splitter;
  pieces(splitter, "10%");
  splitter.take_partial();
  EXPECT_EQ(pieces(splitter, "\r20%"), (Pieces{"~"}));
  EXPECT_TRUE(splitter.is_update());
  EXPECT_EQ(pieces(splitter, "\n"), (Pieces{"20%"}));
}

TEST(LineSplitterTest, CutsOnlyLinesLongerThanTheLimit) {
  const std::string exact(kMax, 'x');
  for (const std::size_t chunk : {std::size_t{1000}, kMax, 3 * kMax}) {
    LineSplitter splitter;
    Pieces all;
    const std::string text = exact + "\n" + exact + "y\n" + exact + exact + "z\n";
    for (std::size_t at = 0; at < text.size(); at += chunk)
      for (std::string& piece : pieces(splitter, text.substr(at, chunk)))
        all.push_back(std::move(piece));
    EXPECT_EQ(all, (Pieces{exact, exact + "+", "y", exact + "+", exact + "+", "z"}));
  }
}

TEST(LineSplitterTest, CountsShownBytesToTheLimit) {
  LineSplitter splitter;
  pieces(splitter, std::string(kMax - 1, 'x'));
  splitter.take_partial();
  EXPECT_EQ(pieces(splitter, "ab\n"), (Pieces{"~a+", "b"}));
}

TEST(LineSplitterTest, PassesNulAndInvalidUtf8) {
  LineSplitter splitter;
  const std::string odd = "\0\xc3\x28\xff"s;
  EXPECT_EQ(pieces(splitter, odd + "\n"), (Pieces{odd}));
}

// ---- Groups of bars ----------------------------------------------------------------------------

std::vector<std::string> texts(const std::vector<std::string_view>& views) {
  return {views.begin(), views.end()};
}

// The output of tqdm for an outer bar and the steps of an inner one.
std::string nested_bars(int outer, int steps) {
  std::string text = "\router " + std::to_string(outer);
  for (int step = 0; step < steps; ++step) text += "\n\rinner " + std::to_string(step) + "\x1b[A";
  return text;
}

class GroupsTest : public ::testing::Test {
 protected:
  GroupsTest() { splitter_.set_groups(true); }
  LineSplitter splitter_;
};

TEST_F(GroupsTest, KeepTheNewestStateOfEachRow) {
  // The group is recognized only at the first move up.
  EXPECT_EQ(pieces(splitter_, nested_bars(0, 3)), Pieces{"outer 0"});
  EXPECT_EQ(texts(splitter_.state()), Pieces{"inner 2"});
  for (int outer = 1; outer < 9; ++outer)
    EXPECT_EQ(pieces(splitter_, nested_bars(outer, 5)), Pieces{});
  EXPECT_TRUE(splitter_.is_update());
  EXPECT_EQ(texts(splitter_.state()), (Pieces{"outer 8", "inner 4"}));
}

TEST_F(GroupsTest, AreFinalWhenTwoLinesFollow) {
  pieces(splitter_, nested_bars(0, 3) + nested_bars(1, 3));
  // The inner bar erases itself, and the outer one remains.
  EXPECT_EQ(pieces(splitter_, "\n\r       \r\x1b[A\router 2\n"), Pieces{});
  EXPECT_EQ(pieces(splitter_, "epoch is over\n"), Pieces{"outer 2"});
  EXPECT_EQ(pieces(splitter_, "bye\nand a line\n"), (Pieces{"epoch is over", "bye", "and a line"}));
  EXPECT_FALSE(splitter_.is_update());
}

TEST_F(GroupsTest, PassLinesAbove) {
  pieces(splitter_, nested_bars(0, 3) + nested_bars(1, 3));
  // tqdm.write(): clears both bars, prints, and draws them again one row below.
  EXPECT_EQ(pieces(splitter_, "\r       \r\n\r       \r\x1b[Aa line\n" + nested_bars(1, 1)),
            Pieces{"a line"});
  EXPECT_EQ(texts(splitter_.state()), (Pieces{"outer 1", "inner 0"}));
}

TEST_F(GroupsTest, GrowWhenTheCursorMovesFurtherUp) {
  const std::string three = "\ra\n\rb\x1b[A\n\n\rc\x1b[2A";
  pieces(splitter_, three + three);
  EXPECT_EQ(pieces(splitter_, three), Pieces{});
  EXPECT_EQ(texts(splitter_.state()), (Pieces{"a", "b", "c"}));
}

TEST_F(GroupsTest, GiveTheSameLinesForEveryChunking) {
  const std::string text = nested_bars(0, 2) + nested_bars(1, 2) +
                           "\n\x1b[32mgreen\x1b[0m\nlast\nend\n" + nested_bars(7, 1);
  LineSplitter whole;
  whole.set_groups(true);
  const Pieces expected = pieces(whole, text);
  EXPECT_EQ(expected.back(), "outer 7");
  // ControlFilter does not split sequences.
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    const std::size_t escape = text.rfind('\x1b', cut - 1);
    if (escape != std::string::npos && text.find_first_of("Am", escape) >= cut) continue;
    LineSplitter splitter;
    splitter.set_groups(true);
    Pieces all = pieces(splitter, text.substr(0, cut));
    for (std::string& piece : pieces(splitter, text.substr(cut))) all.push_back(std::move(piece));
    EXPECT_EQ(all, expected) << "cut at " << cut;
    EXPECT_EQ(splitter.state(), whole.state()) << "cut at " << cut;
  }
}

TEST_F(GroupsTest, GiveOutNoRowThatWasShown) {
  pieces(splitter_, nested_bars(0, 1) + nested_bars(1, 3));
  EXPECT_EQ(texts(splitter_.take_new_state()), (Pieces{"outer 1", "inner 2"}));
  pieces(splitter_, "\n\rinner 3\x1b[A");
  EXPECT_EQ(texts(splitter_.take_new_state()), Pieces{"inner 3"});
  EXPECT_EQ(pieces(splitter_, "\router 2"), Pieces{});
  EXPECT_EQ(splitter_.finish()->text, "outer 2");
  EXPECT_FALSE(splitter_.finish().has_value()) << "inner 3 has already been shown";
}

TEST_F(GroupsTest, StayWithinTheirBounds) {
  std::string deep = "x";
  for (int row = 0; row < 1000; ++row) deep += "\x1b[A\rrow";
  pieces(splitter_, deep);
  EXPECT_LE(splitter_.state().size(), LineSplitter::kMaxRows);
  pieces(splitter_, "\x1b[99999999999999999999A\r");
  std::string given;
  for (int row = 0; row < 4; ++row)
    for (const std::string& piece : pieces(splitter_, std::string(kMax / 2, 'y') + "\n"))
      given += piece;
  std::size_t kept = 0;
  for (const std::string_view row : splitter_.state()) kept += row.size();
  EXPECT_LE(kept, kMax);
  EXPECT_GE(given.size() + kept, 2 * kMax) << "text without room is returned";
}

TEST_F(GroupsTest, FollowALineWhoseBeginningWasShown) {
  pieces(splitter_, "begin");
  EXPECT_EQ(splitter_.take_partial(), "begin");
  EXPECT_EQ(pieces(splitter_, " end\x1b[A\rabove\n"), Pieces{"~ end"});
  EXPECT_EQ(texts(splitter_.state()), Pieces{"above"});
}

TEST(LineSplitterTest, KeepsCursorMovesByDefault) {
  LineSplitter splitter;
  EXPECT_EQ(pieces(splitter, "a\x1b[Ab\n"), Pieces{"a\x1b[Ab"});
}

}  // namespace
}  // namespace ivy
