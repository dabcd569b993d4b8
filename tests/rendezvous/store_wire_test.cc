// SPDX-License-Identifier: Apache-2.0
// Frames and fields: every split of the bytes gives the same frames, and excessive lengths are
// rejected before any bytes are kept.
#include "proto/wire/store_wire.h"

#include <gtest/gtest.h>

#include <random>

namespace ivy::store {
namespace {

std::string sample() {
  std::string bytes;
  append_frame(bytes, {1, 7}, "");
  append_frame(bytes, {255, 0xffffffff}, std::string("\0\1\2", 3));
  append_frame(bytes, {0, 0}, std::string(100'000, 'x'));
  append_frame(bytes, {9, 1}, "end");
  return bytes;
}

std::string decoded(const std::string& bytes, std::size_t cut) {
  WireDecoder decoder(kMaxFrameBytes);
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += cut) {
    decoder.feed(std::string_view(bytes).substr(at, cut));
    while (auto frame = *decoder.next()) {
      text += std::to_string(frame->head.kind) + "/" + std::to_string(frame->head.id) + "/" +
              frame->payload + ";";
    }
  }
  return text;
}

TEST(StoreWireTest, DecodesTheSameFramesFromAnyFragments) {
  const std::string bytes = sample();
  const std::string whole = decoded(bytes, bytes.size());
  EXPECT_TRUE(whole.starts_with(std::string("1/7/;255/4294967295/\0\1\2;0/0/xxx", 31)));
  EXPECT_TRUE(whole.ends_with("x;9/1/end;"));
  for (const std::size_t cut : {1, 2, 5, 4096, 65537}) EXPECT_TRUE(decoded(bytes, cut) == whole);
}

TEST(StoreWireTest, RejectsLengthsImmediately) {
  const std::vector<std::pair<std::uint32_t, bool>> table = {
      {0, false}, {4, false}, {5, true}, {100, true}, {101, false}, {0xffffffff, false}};
  for (const auto& [length, allowed] : table) {
    WireDecoder decoder(100);
    std::string bytes;
    put_u32(bytes, length);
    decoder.feed(bytes);
    EXPECT_EQ(decoder.next().ok(), allowed) << length;
  }
}

TEST(StoreWireTest, ReadersStayFailed) {
  std::string bytes;
  put_u8(bytes, 1);
  put_u32(bytes, 2);
  put_u64(bytes, 3);
  put_text(bytes, "four");
  PayloadReader all(bytes);
  EXPECT_EQ(all.u8(), 1);
  EXPECT_EQ(all.u32(), 2u);
  EXPECT_EQ(all.i64(), 3);
  EXPECT_EQ(all.text(), "four");
  EXPECT_TRUE(all.done());
  EXPECT_EQ(all.u8(), 0);
  EXPECT_FALSE(all.ok());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    PayloadReader part(std::string_view(bytes).substr(0, size));
    part.u8();
    part.u32();
    part.u64();
    EXPECT_EQ(part.text(), "");
    EXPECT_FALSE(part.ok()) << size;
    EXPECT_EQ(part.u8(), 0) << "a failed reader must return zeros";
  }
  std::string lie;
  put_u32(lie, 0xffffffff);
  lie += "abc";
  PayloadReader reader(lie);
  EXPECT_EQ(reader.text(), "");
  EXPECT_FALSE(reader.ok());
}

TEST(StoreWireTest, HandlesRandomBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 64; ++i) bytes.push_back(static_cast<char>(random() % (round % 7 + 2)));
    WireDecoder decoder(1000);
    decoder.feed(bytes);
    while (true) {
      const auto frame = decoder.next();
      if (!frame.ok() || !*frame) break;
      PayloadReader in((*frame)->payload);
      in.text();
      in.u64();
      in.text();
    }
  }
}

}  // namespace
}  // namespace ivy::store
