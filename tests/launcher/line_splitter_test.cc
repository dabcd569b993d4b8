#include "launcher/screen/line_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy {
namespace {

using namespace std::string_literals;

constexpr std::size_t kMax = LineSplitter::kMaxLineBytes;

// Every piece as text, "~" in front of a continued one and "+" behind one that was cut.
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

TEST(LineSplitterTest, MarksWhatFollowsAShownBeginning) {
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

}  // namespace
}  // namespace ivy
