// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/rank_memory.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

std::string text_of(const std::deque<RankMemory::Piece>& pieces) {
  std::string text;
  for (const RankMemory::Piece& piece : pieces)
    text += std::to_string(piece.stream) + "[" + piece.bytes + "]";
  return text;
}

TEST(RankMemoryTest, KeepsBothStreamsInTheirOrder) {
  RankMemory memory;
  memory.add(1, "a\n", false);
  memory.add(1, "b\n", false);
  memory.add(2, "oops\n", true);
  memory.add(1, "c\n", false);
  EXPECT_EQ(text_of(memory.take()), "1[a\nb\n]2[oops\n]1[c\n]");
  EXPECT_EQ(text_of(memory.take()), "");
  EXPECT_TRUE(memory.has_ended(2));
  EXPECT_FALSE(memory.has_ended(1));
}

TEST(RankMemoryTest, DropsTheOldestBytesAndStartsAtALine) {
  RankMemory memory;
  std::string all;
  for (int number = 0; all.size() < 3 * RankMemory::kMaxBytes; ++number) {
    const std::string line = "line " + std::to_string(number) + "\n";
    memory.add(1, line, false);
    all += line;
  }
  std::string kept;
  for (const RankMemory::Piece& piece : memory.take()) kept += piece.bytes;
  EXPECT_TRUE(kept.starts_with("line ")) << kept.substr(0, 20);
  EXPECT_TRUE(all.ends_with(kept));
  EXPECT_LE(kept.size(), RankMemory::kMaxBytes);
  // Bytes are dropped in pieces of 4 KiB.
  EXPECT_GT(kept.size(), RankMemory::kMaxBytes - (9u << 10));
}

TEST(RankMemoryTest, KeepsTheEndOfALargeWrite) {
  RankMemory memory;
  memory.add(2, std::string(RankMemory::kMaxBytes, 'x') + "\nthe end\n", true);
  std::string kept;
  for (const RankMemory::Piece& piece : memory.take()) kept += piece.bytes;
  EXPECT_EQ(kept.size(), RankMemory::kMaxBytes);
  EXPECT_TRUE(kept.ends_with("x\nthe end\n"));
}

}  // namespace
}  // namespace ivy
