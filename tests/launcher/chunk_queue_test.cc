// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/chunk_queue.h"

#include <gtest/gtest.h>

#include <random>

namespace ivy {
namespace {

constexpr std::size_t kAll = 1u << 30;

// Pops everything in pieces of at most `most` bytes; returns for instance "0:abc 1:end", with
// adjacent pieces of a lane joined.
std::string drained(ChunkQueue& queue, std::size_t most) {
  std::string text;
  std::string last;
  while (!queue.empty()) {
    const ChunkQueue::Front front = queue.front(most);
    EXPECT_LE(front.bytes.size(), most);
    const std::string source = std::to_string(front.source) + ":";
    if (front.kind != ChunkKind::kBytes || source != last)
      text += (text.empty() ? "" : " ") + source;
    last = front.kind == ChunkKind::kBytes ? source : "";
    if (front.kind == ChunkKind::kEnd) text += "end";
    if (front.kind == ChunkKind::kCut) text += "cut";
    text += front.bytes;
    queue.pop(front.bytes.size());
  }
  EXPECT_EQ(queue.bytes(), 0u);
  return text;
}

TEST(ChunkQueueTest, KeepsTheOrderOfSourcesAndEnds) {
  for (const std::size_t most : {std::size_t{1}, std::size_t{3}, kAll}) {
    ChunkQueue queue;
    EXPECT_TRUE(queue.empty());
    queue.push(0, ChunkKind::kBytes, "ab");
    queue.push(0, ChunkKind::kBytes, "cd");
    queue.push(1, ChunkKind::kBytes, "x");
    queue.push(0, ChunkKind::kCut, "");
    queue.push(0, ChunkKind::kBytes, "e");
    queue.push(0, ChunkKind::kEnd, "");
    queue.push(1, ChunkKind::kEnd, "");
    EXPECT_EQ(queue.bytes(), 6u);
    EXPECT_EQ(drained(queue, most), "0:abcd 1:x 0:cut 0:e 0:end 1:end");
  }
}

TEST(ChunkQueueTest, IsEmptyInitially) {
  ChunkQueue queue;
  queue.push(3, ChunkKind::kBytes, "");
  EXPECT_TRUE(queue.empty());
}

TEST(ChunkQueueTest, LimitsTheFrontAndPopsAPart) {
  ChunkQueue queue;
  queue.push(7, ChunkKind::kBytes, "abcdef");
  EXPECT_EQ(queue.front(4).bytes, "abcd");
  queue.pop(2);
  EXPECT_EQ(queue.front(kAll).bytes, "cdef");
  EXPECT_EQ(queue.front(kAll).source, 7u);
  EXPECT_EQ(queue.bytes(), 4u);
  queue.push(7, ChunkKind::kBytes, "g");
  EXPECT_EQ(queue.front(kAll).bytes, "cdefg");
  queue.pop(5);
  EXPECT_TRUE(queue.empty());
}

TEST(ChunkQueueTest, KeepsLongChunksThatCrossItsBlocks) {
  const std::string big(300'001, 'b');
  ChunkQueue queue;
  queue.push(0, ChunkKind::kBytes, "a");
  queue.push(1, ChunkKind::kBytes, big);
  queue.push(1, ChunkKind::kEnd, "");
  EXPECT_EQ(queue.bytes(), big.size() + 1);
  EXPECT_EQ(drained(queue, 1000), "0:a 1:" + big + " 1:end");
}

// Compares it with the simplest model, a list of everything that was pushed.
TEST(ChunkQueueTest, LosesNothingInAnyOrderOfCalls) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    ChunkQueue queue;
    std::string pushed;
    std::string popped;
    std::size_t waiting = 0;
    for (int step = 0; step < 200; ++step) {
      if (random() % 2 == 0 || queue.empty()) {
        const std::uint32_t source = random() % 2;
        const std::string bytes(1 + random() % 100'000, static_cast<char>('a' + step % 26));
        queue.push(source, ChunkKind::kBytes, bytes);
        for (const char byte : bytes) pushed += {static_cast<char>('0' + source), byte};
        waiting += bytes.size();
      } else {
        const ChunkQueue::Front front = queue.front(1 + random() % 150'000);
        ASSERT_FALSE(front.bytes.empty());
        for (const char byte : front.bytes) popped += {static_cast<char>('0' + front.source), byte};
        waiting -= front.bytes.size();
        queue.pop(front.bytes.size());
      }
      ASSERT_EQ(queue.bytes(), waiting);
    }
    ASSERT_EQ(popped, pushed.substr(0, popped.size()));
    ASSERT_EQ(pushed.size() - popped.size(), 2 * waiting);
  }
}

}  // namespace
}  // namespace ivy
