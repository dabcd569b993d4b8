// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/store_wire.h"

namespace ivy::store {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kHeadBytes = 1 + 4;  // Not part of the payload.
// Consumed bytes are erased when there are at least this many, so that each byte moves at most
// once.
constexpr std::size_t kCompactBytes = 64u << 10;
constexpr std::size_t kKeptBytes = 64u << 10;

void put_little(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

}  // namespace

std::uint64_t read_little(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

void append_frame(std::string& out, FrameHead head, std::string_view payload) {
  IVY_ASSERT(payload.size() + kHeadBytes <= kMaxFrameBytes);
  put_u32(out, static_cast<std::uint32_t>(payload.size() + kHeadBytes));
  put_u8(out, head.kind);
  put_u32(out, head.id);
  out.append(payload);
}

void WireDecoder::feed(std::string_view bytes) {
  if (consumed_ == buffer_.size()) {
    // Release the memory of a large frame now, not when the connection closes.
    if (buffer_.capacity() > kKeptBytes) buffer_ = {};
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ >= kCompactBytes) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_.append(bytes);
}

Result<std::optional<WireFrame>> WireDecoder::next() {
  const std::string_view waiting = std::string_view(buffer_).substr(consumed_);
  if (waiting.size() < kLengthBytes) return std::optional<WireFrame>();
  const std::size_t length = read_little(waiting.substr(0, kLengthBytes));
  if (length < kHeadBytes || length > max_bytes_) {
    return Error{Code::kDataLoss, "a frame has " + std::to_string(length) +
                                      " bytes; it must have " + std::to_string(kHeadBytes) +
                                      " to " + std::to_string(max_bytes_)};
  }
  if (waiting.size() < kLengthBytes + length) return std::optional<WireFrame>();
  WireFrame frame;
  frame.head.kind = static_cast<std::uint8_t>(waiting[kLengthBytes]);
  frame.head.id = static_cast<std::uint32_t>(read_little(waiting.substr(kLengthBytes + 1, 4)));
  frame.payload = waiting.substr(kLengthBytes + kHeadBytes, length - kHeadBytes);
  consumed_ += kLengthBytes + length;
  return std::optional<WireFrame>(std::move(frame));
}

std::string_view PayloadReader::take(std::size_t bytes) {
  if (!ok_ || bytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::uint8_t PayloadReader::u8() { return static_cast<std::uint8_t>(read_little(take(1))); }
std::uint32_t PayloadReader::u32() { return static_cast<std::uint32_t>(read_little(take(4))); }
std::uint64_t PayloadReader::u64() { return read_little(take(8)); }

std::string_view PayloadReader::text() {
  const std::uint32_t length = u32();
  return take(length);
}

void put_u8(std::string& out, std::uint8_t value) { put_little(out, value, 1); }
void put_u32(std::string& out, std::uint32_t value) { put_little(out, value, 4); }
void put_u64(std::string& out, std::uint64_t value) { put_little(out, value, 8); }

void put_text(std::string& out, std::string_view text) {
  put_u32(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

}  // namespace ivy::store
