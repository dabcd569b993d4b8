// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/stage_codec.h"

#include <gtest/gtest.h>

namespace ivy::stage {
namespace {

TEST(StageMessages, SplitterReturnsMessagesThatArriveInPieces) {
  const std::string bytes = framed("one") + framed("") + framed("three");
  MessageSplitter splitter;
  std::vector<std::string> messages;
  for (const char c : bytes) {
    splitter.feed(std::string(1, c));
    while (const std::optional<std::string> message = splitter.next().value())
      messages.push_back(*message);
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"one", "", "three"}));
}

TEST(StageMessages, SplitterRejectsAnOversizedMessage) {
  MessageSplitter splitter;
  splitter.feed("\xff\xff\xff\xff");
  EXPECT_EQ(splitter.next().error().code, Code::kDataLoss);
}

TEST(StageBlocks, SegmentsCoverEveryByteOnceAndInOrder) {
  const BlockMap map({{0, 0, 10}, {3, 5, kBlockBytes * 2}, {4, 0, 0}, {7, 0, 1}});
  EXPECT_EQ(map.total_bytes(), 10 + (kBlockBytes * 2 - 5) + 1);
  EXPECT_EQ(map.blocks(), 3u);
  std::vector<std::uint64_t> next(8, 0);
  next[3] = 5;
  for (std::uint64_t number = 0; number < map.blocks(); ++number) {
    std::size_t bytes = 0;
    for (const Segment& segment : map.segments(number)) {
      EXPECT_EQ(segment.offset, next[segment.object]);
      next[segment.object] += segment.bytes;
      bytes += segment.bytes;
    }
    EXPECT_EQ(bytes, map.block_bytes(number));
  }
  EXPECT_EQ(next, (std::vector<std::uint64_t>{10, 0, 0, kBlockBytes * 2, 0, 0, 0, 1}));
}

TEST(StageBlocks, MapWithoutPiecesHasNoBlocks) {
  EXPECT_EQ(BlockMap().blocks(), 0u);
  EXPECT_EQ(BlockMap(std::vector<Piece>()).blocks(), 0u);
  EXPECT_EQ(BlockMap(std::vector<Piece>{{0, 4, 4}}).blocks(), 0u);
}

TEST(StageBlocks, CompressionRestoresTheBytes) {
  const std::string bytes(100'000, 'x');
  const std::string packed = compressed(bytes, 1);
  EXPECT_LT(packed.size(), 1000u);
  EXPECT_EQ(decompressed(packed, bytes.size()).value(), bytes);
}

TEST(StageBlocks, DamagedOrLongerBlocksAreRejected) {
  const std::string packed = compressed("some text", 1);
  EXPECT_EQ(decompressed(packed, 8).error().code, Code::kDataLoss);
  EXPECT_EQ(decompressed("no zstd", 9).error().code, Code::kDataLoss);
}

}  // namespace
}  // namespace ivy::stage
