// SPDX-License-Identifier: Apache-2.0
// The decoder gives the same frames however the bytes are split. It rejects invalid bytes
// immediately, without waiting for more.
#include <gtest/gtest.h>

#include <random>

#include "proto/wire/session.h"

namespace ivy::session {
namespace {

std::string frame_bytes(FrameType type, const std::string& payload, std::uint64_t sequence = 0) {
  FrameHeader header;
  header.length = static_cast<std::uint32_t>(payload.size());
  header.type = type;
  header.sequence = sequence;
  header.acknowledged = 3;
  header.credit = 1u << 20;
  header.sent_at_ns = 123456789012345;
  return encode_header(header) + payload;
}

std::string sample_stream() {
  std::string payload(300, '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i);
  return "Welcome to node07!\r\n" + std::string(kPreamble) +
         frame_bytes(FrameType::kAttach, "hello") + frame_bytes(FrameType::kCommand, "", 1) +
         frame_bytes(FrameType::kEvent, payload, 2) + frame_bytes(FrameType::kHeartbeat, "") +
         frame_bytes(FrameType::kOutput, "x", 3);
}

struct Taken {
  std::vector<Frame> frames;
  std::string noise;
  bool failed = false;
};

// Feeds the pieces and takes all frames after each, as a reader of a socket does.
Taken decode(const std::vector<std::string>& pieces, std::size_t limit = kMaxPayloadBytes) {
  Taken taken;
  FrameDecoder decoder;
  decoder.limit_payload(limit);
  for (const std::string& piece : pieces) {
    if (!decoder.feed(piece).ok()) taken.failed = true;
    while (std::optional<Frame> frame = decoder.next()) taken.frames.push_back(std::move(*frame));
    if (!decoder.feed({}).ok()) taken.failed = true;
    if (taken.failed) break;
  }
  taken.noise = decoder.noise();
  return taken;
}

std::vector<std::string> cut(const std::string& bytes, std::size_t size) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += size) pieces.push_back(bytes.substr(at, size));
  return pieces;
}

void expect_same(const Taken& left, const Taken& right) {
  EXPECT_EQ(left.failed, right.failed);
  EXPECT_EQ(left.noise, right.noise);
  ASSERT_EQ(left.frames.size(), right.frames.size());
  for (std::size_t i = 0; i < left.frames.size(); ++i) {
    EXPECT_EQ(left.frames[i].payload, right.frames[i].payload);
    EXPECT_EQ(encode_header(left.frames[i].header), encode_header(right.frames[i].header));
  }
}

TEST(FrameDecoderTest, KeepsEveryField) {
  const Taken taken = decode({sample_stream()});
  ASSERT_EQ(taken.frames.size(), 5u);
  EXPECT_FALSE(taken.failed);
  EXPECT_EQ(taken.noise, "Welcome to node07!\r\n");
  const FrameHeader& header = taken.frames[2].header;
  EXPECT_EQ(header.type, FrameType::kEvent);
  EXPECT_EQ(header.length, 300u);
  EXPECT_EQ(header.sequence, 2u);
  EXPECT_EQ(header.acknowledged, 3u);
  EXPECT_EQ(header.credit, 1u << 20);
  EXPECT_EQ(header.sent_at_ns, 123456789012345u);
  EXPECT_EQ(encode_header(header).size(), kHeaderBytes);
}

TEST(FrameDecoderTest, DecodesByteByByteLikeTheWhole) {
  const Taken whole = decode({sample_stream()});
  for (const std::size_t size : {1, 2, 3, 7, 47, 48, 49, 100})
    expect_same(decode(cut(sample_stream(), size)), whole);
}

TEST(FrameDecoderTest, DecodesTwoPiecesLikeTheWhole) {
  const std::string bytes = sample_stream();
  const Taken whole = decode({bytes});
  for (std::size_t at = 0; at <= bytes.size(); ++at)
    expect_same(decode({bytes.substr(0, at), bytes.substr(at)}), whole);
}

TEST(FrameDecoderTest, KeepsTheNoiseBeforeAPreamble) {
  // If a remote shell fails, its last output must reach the error message completely.
  FrameDecoder decoder;
  ASSERT_TRUE(decoder.feed("bash: no").ok());
  EXPECT_EQ(decoder.noise(), "bash: no");
  ASSERT_TRUE(decoder.feed(kPreamble.substr(0, 5)).ok());
  EXPECT_EQ(decoder.noise(), "bash: no");
  ASSERT_TRUE(decoder.feed("!").ok());
  EXPECT_EQ(decoder.noise(), "bash: no" + std::string(kPreamble.substr(0, 5)) + "!");
}

TEST(FrameDecoderTest, TreatsAPartialPreambleAsNoise) {
  for (std::size_t length = 0; length < kPreamble.size(); ++length) {
    const std::string noise = "a" + std::string(kPreamble.substr(0, length));
    for (const std::size_t size : {1, 5, 100}) {
      const Taken taken = decode(
          cut(noise + std::string(kPreamble) + frame_bytes(FrameType::kCommand, "c", 1), size));
      ASSERT_EQ(taken.frames.size(), 1u) << length << " " << size;
      EXPECT_EQ(taken.noise, noise);
    }
  }
}

TEST(FrameDecoderTest, BoundsNoiseForEverySplit) {
  const std::string allowed(kNoiseMaxBytes, 'n');
  const std::string frame = std::string(kPreamble) + frame_bytes(FrameType::kCommand, "c", 1);
  for (const std::size_t size : {std::size_t{4096}, allowed.size() * 2}) {
    const Taken good = decode(cut(allowed + frame, size));
    EXPECT_FALSE(good.failed);
    EXPECT_EQ(good.frames.size(), 1u);
    EXPECT_EQ(good.noise, std::string(kNoiseKeptBytes, 'n'));
    EXPECT_TRUE(decode(cut(allowed + "n" + frame, size)).failed);
  }
}

TEST(FrameDecoderTest, RejectsAnOversizedFrameByItsHeader) {
  FrameHeader header;
  header.type = FrameType::kCommand;
  header.sequence = 1;
  header.length = kMaxPayloadBytes + 1;
  FrameDecoder decoder;
  ASSERT_TRUE(decoder.feed(kPreamble).ok());
  const Result<void> fed = decoder.feed(encode_header(header));
  ASSERT_FALSE(fed.ok());
  EXPECT_EQ(fed.error().code, Code::kDataLoss);
  EXPECT_FALSE(decoder.next().has_value());
}

TEST(FrameDecoderTest, AppliesTheLimitExactly) {
  const std::string preamble(kPreamble);
  EXPECT_EQ(
      decode({preamble + frame_bytes(FrameType::kAttach, std::string(512, 'a'))}, kMaxAttachBytes)
          .frames.size(),
      1u);
  EXPECT_TRUE(
      decode({preamble + frame_bytes(FrameType::kAttach, std::string(513, 'a'))}, kMaxAttachBytes)
          .failed);
  EXPECT_EQ(
      decode({preamble + frame_bytes(FrameType::kCommand, std::string(kMaxPayloadBytes, 'a'), 1)})
          .frames.size(),
      1u);
}

TEST(FrameDecoderTest, RejectsOrBoundsMutatedHeaders) {
  std::mt19937_64 random(20240711);
  const std::string good = frame_bytes(FrameType::kCommand, std::string(100, 'p'), 1);
  int rejected = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    const std::size_t flips = 1 + random() % 4;
    for (std::size_t i = 0; i < flips; ++i)
      bytes[random() % kHeaderBytes] = static_cast<char>(random());
    const Taken taken = decode({std::string(kPreamble), bytes, good});
    rejected += taken.failed ? 1 : 0;
    for (const Frame& frame : taken.frames) {
      EXPECT_LE(frame.payload.size(), 2 * good.size());
      EXPECT_EQ(frame.payload.size(), frame.header.length);
      EXPECT_GE(static_cast<int>(frame.header.type), 1);
      EXPECT_LE(static_cast<int>(frame.header.type), 8);
    }
  }
  EXPECT_GT(rejected, 500);
}

TEST(FrameDecoderTest, DetectsAShiftedStreamAtTheNextFrame) {
  const std::string frame = frame_bytes(FrameType::kEvent, std::string(64, 'e'), 1);
  for (const int slip : {-1, 1}) {
    std::string bytes = frame;
    if (slip < 0) bytes.pop_back();
    if (slip > 0) bytes.push_back('e');
    EXPECT_TRUE(decode({std::string(kPreamble) + bytes + frame + frame}).failed) << slip;
  }
}

TEST(FrameDecoderTest, ResetDropsAPartialFrame) {
  FrameDecoder decoder;
  const std::string frame = frame_bytes(FrameType::kEvent, "event", 1);
  ASSERT_TRUE(decoder.feed("noise" + std::string(kPreamble) + frame.substr(0, 50)).ok());
  decoder.reset();
  EXPECT_EQ(decoder.noise(), "");
  ASSERT_TRUE(decoder.feed(std::string(kPreamble) + frame).ok());
  ASSERT_TRUE(decoder.next().has_value());
  EXPECT_FALSE(decoder.next().has_value());
}

TEST(AttachTest, SurvivesARoundTrip) {
  const std::string token("\0\x01\xff token of thirty-two bytes.....", 32);
  const AttachRequest request{std::string(32, 'a'), token, "0123456789abcdef"};
  const std::string bytes = encode_attach(request);
  EXPECT_LE(bytes.size(), kMaxAttachBytes);
  const Result<AttachRequest> decoded = decode_attach(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->job_id, request.job_id);
  EXPECT_EQ(decoded->token, token);
  EXPECT_EQ(decoded->build, request.build);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_attach(bytes.substr(0, length)).ok()) << length;
  EXPECT_FALSE(decode_attach(bytes + "x").ok());
}

TEST(OutputChunkTest, SurvivesARoundTrip) {
  const std::string text("\0bytes\xff", 7);
  OutputChunk chunk;
  chunk.generation = 3;
  chunk.rank = 70000;
  chunk.stream = 2;
  chunk.bytes = text;
  const std::string bytes = encode_output(chunk);
  EXPECT_EQ(bytes.size(), kOutputHeaderBytes + text.size());
  const Result<OutputChunk> decoded = decode_output(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->generation, 3u);
  EXPECT_EQ(decoded->rank, 70000u);
  EXPECT_EQ(decoded->stream, 2);
  EXPECT_FALSE(decoded->end);
  EXPECT_EQ(decoded->bytes, text);
  for (std::size_t length = 0; length < kOutputHeaderBytes; ++length)
    EXPECT_FALSE(decode_output(bytes.substr(0, length)).ok());
  std::string strange = bytes;
  strange[8] = 3;
  EXPECT_FALSE(decode_output(strange).ok());
}

TEST(OutputChunkTest, EncodesTheEndOfAStreamWithoutBytes) {
  OutputChunk chunk;
  chunk.end = true;
  const std::string bytes = encode_output(chunk);
  const Result<OutputChunk> decoded = decode_output(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->end);
  EXPECT_TRUE(decoded->bytes.empty());
}

}  // namespace
}  // namespace ivy::session
