// SPDX-License-Identifier: Apache-2.0
// Frames of the job socket, and the output that a slow follower loses.
#include "launcher/job/control/ctl_wire.h"

#include <gtest/gtest.h>

#include "launcher/job/control/follow_queue.h"

namespace ivy {
namespace {

ctl::Request signal_request(int signal) {
  ctl::Request request;
  request.mutable_signal()->set_signal(signal);
  return request;
}

TEST(CtlWire, DecodesMessagesInOrderForEveryChunking) {
  const std::string bytes = encode_ctl(signal_request(1)) + encode_ctl(signal_request(2));
  CtlDecoder decoder;
  std::vector<int> signals;
  for (const char byte : bytes) {
    decoder.feed(std::string_view(&byte, 1));
    const Result<std::optional<std::string>> message = decoder.next();
    ASSERT_TRUE(message.ok());
    if (!*message) continue;
    ctl::Request request;
    ASSERT_TRUE(request.ParseFromString(**message));
    EXPECT_EQ(request.version(), kCtlVersion);
    signals.push_back(request.signal().signal());
  }
  EXPECT_EQ(signals, (std::vector<int>{1, 2}));
}

TEST(CtlWire, RejectsALengthBeyondTheLimitBeforeItsBytesArrive) {
  CtlDecoder decoder;
  decoder.feed(std::string("\x01\x00\x10\x00", 4));  // 1 MiB and one byte.
  EXPECT_EQ(decoder.next().error().code, Code::kDataLoss);
  CtlDecoder longest;
  longest.feed(std::string("\x00\x00\x10\x00", 4));
  EXPECT_TRUE(longest.next().ok());
}

TEST(CtlWire, IgnoresUnknownFields) {
  ctl::Request request = signal_request(10);
  // Field 1000, a varint, which a newer ivyctl may add.
  const std::string message = request.SerializeAsString() + "\xc0\x3e\x07";
  ctl::Request read;
  ASSERT_TRUE(read.ParseFromString(message));
  EXPECT_EQ(read.signal().signal(), 10);
}

// ---- FollowQueue --------------------------------------------------------------------------------

struct Seen {
  std::string text;  // Of all lanes in order; gaps as "<N>" or "<N cut>".
  std::uint64_t lost = 0;
};

void read_some(FollowQueue& queue, std::size_t most, CtlDecoder& decoder, Seen& seen) {
  decoder.feed(queue.take(most));
  for (;;) {
    const Result<std::optional<std::string>> message = decoder.next();
    ASSERT_TRUE(message.ok());
    if (!*message) return;
    ctl::Reply reply;
    ASSERT_TRUE(reply.ParseFromString(**message));
    if (reply.has_output()) seen.text += reply.output().bytes();
    if (reply.has_gap()) {
      seen.text += "<" + std::to_string(reply.gap().lines()) + (reply.gap().cut() ? " cut>" : ">");
      seen.lost += reply.gap().lines();
    }
    if (reply.has_message()) seen.text += "{" + reply.message().text() + "}";
  }
}

std::string read_all(FollowQueue& queue) {
  CtlDecoder decoder;
  Seen seen;
  while (!queue.empty()) read_some(queue, 1u << 20, decoder, seen);
  return seen.text;
}

TEST(FollowQueue, LosesNothingIfTheReaderKeepsUp) {
  FollowQueue queue;
  std::string all;
  Seen seen;
  CtlDecoder decoder;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = std::string(5000, 'x') + (i % 3 == 0 ? "\n" : "");
    all += text;
    queue.output(0, 1, text, false);
    read_some(queue, 1u << 20, decoder, seen);
  }
  EXPECT_EQ(seen.text, all);
}

TEST(FollowQueue, DropsAndCountsWholeLinesOfASlowReader) {
  FollowQueue queue;
  const std::string line = std::string(999, 'x') + "\n";
  int lines = 0;
  for (; lines < 3000; ++lines) queue.output(3, 2, line, false);
  EXPECT_LE(queue.bytes(), FollowQueue::kLimitBytes);
  CtlDecoder decoder;
  Seen seen;
  while (!queue.empty()) read_some(queue, 64u << 10, decoder, seen);
  queue.output(3, 2, "the end\n", false);
  read_some(queue, 64u << 10, decoder, seen);
  const auto shown = std::count(seen.text.begin(), seen.text.end(), '\n') - 1;
  EXPECT_EQ(static_cast<std::uint64_t>(shown) + seen.lost, 3000u);
  EXPECT_GT(seen.lost, 1000u);
  EXPECT_TRUE(seen.text.ends_with(">the end\n"));
}

TEST(FollowQueue, MarksATruncatedLine) {
  FollowQueue queue;
  queue.output(0, 1, "begun", false);
  queue.output(0, 1, std::string(FollowQueue::kLimitBytes, 'y'), false);  // Dropped.
  EXPECT_EQ(read_all(queue), "begun");
  queue.output(0, 1, "rest\nnext\n", false);
  EXPECT_EQ(read_all(queue), "<1 cut>next\n");
}

TEST(FollowQueue, KeepsStreamsIndependentAndDeliversMessages) {
  FollowQueue queue;
  queue.output(0, 1, std::string(FollowQueue::kLimitBytes + 1, '\n'), false);
  ctl::Reply message;
  message.mutable_message()->set_text("m");
  queue.reply(message);
  queue.output(1, 1, "b\n", false);
  EXPECT_EQ(read_all(queue), "{m}b\n");
  queue.output(0, 1, "", true);
  EXPECT_EQ(read_all(queue), "<" + std::to_string(FollowQueue::kLimitBytes + 1) + ">");
}

TEST(FollowQueue, BoundsMessages) {
  FollowQueue queue;
  ctl::Reply message;
  message.mutable_message()->set_text(std::string(100'000, 'm'));
  for (int i = 0; i < 100; ++i) queue.reply(message);
  EXPECT_LE(queue.bytes(), FollowQueue::kMessageLimitBytes + 200'000);
}

}  // namespace
}  // namespace ivy
