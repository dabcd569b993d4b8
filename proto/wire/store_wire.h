// SPDX-License-Identifier: Apache-2.0
// Frames of the store's native dialect. After the handshake (proto/wire/handshake.h) a connection
// carries pipelined requests with ids chosen by the client. Replies are sent as they become
// available, so a wait does not delay other requests.
//
// clang-format off
//   request  u32 length | u8 op     | u32 id | payload       length counts the bytes after it
//   reply    u32 length | u8 status | u32 id | payload       status: 0, or a Code of status.h
//
// The first reply has the number 0: the welcome, or the reason for the rejection. Requests start at
// 1.
//
// Integers are little endian. A text (key, value, name, prefix) is u32 length and bytes. An error's
// payload is one text.
//
// rendezvous/engine/requests.h has the requests and their fields.
// clang-format on
//
// Pure. Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/socket_options.h"

namespace ivy::store {

// A client repeats a numbered request for at most this long. The store remembers its answer for
// longer (rendezvous/engine/answered_requests.h).
inline constexpr std::chrono::minutes kRepeatFor{5};

// Limits that are checked before anything is allocated.
inline constexpr std::size_t kMaxKeyBytes = 8u << 10;
inline constexpr std::size_t kMaxValueBytes = 8u << 20;
inline constexpr std::size_t kMaxKeysPerRequest = 128u << 10;
inline constexpr std::size_t kMaxFrameBytes = 64u << 20;
// Limit of the values, or the keys, of one reply together, counting the length and the bytes of
// each text. torch's lengths have eight bytes; some room is left for the head.
inline constexpr std::size_t kReplyTextBytes = 8;
inline constexpr std::size_t kMaxReplyBytes = kMaxFrameBytes - 1024;
inline constexpr std::size_t kMaxStoreBytes = 1u << 30;
inline constexpr std::size_t kMaxKeys = 1u << 20;
// Used by both ends of a connection: a host that vanished is detected after a minute.
inline constexpr KeepAlive kKeepAlive{.idle_s = 30, .interval_s = 10, .probes = 3};
inline constexpr std::uint64_t kForeverMs = ~std::uint64_t{0};  // A wait without a timeout.

struct FrameHead {
  std::uint8_t kind = 0;  // The request's op or the reply's status.
  std::uint32_t id = 0;
};

struct WireFrame {
  FrameHead head;
  std::string payload;
};

void append_frame(std::string& out, FrameHead head, std::string_view payload);

// Splits bytes, in pieces of any size, into frames. An error is final: a length beyond `max_bytes`,
// or smaller than a head.
class WireDecoder {
 public:
  explicit WireDecoder(std::size_t max_bytes) : max_bytes_(max_bytes) {}
  void feed(std::string_view bytes);
  // Returns the next frame, or nothing if more bytes are needed. The total cost is linear in the
  // bytes fed, however they are split.
  Result<std::optional<WireFrame>> next();
  void limit(std::size_t max_bytes) { max_bytes_ = max_bytes; }

 private:
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t consumed_ = 0;
};

// Reads the fields of a payload, in order. Reading past the end, or a text longer than the rest,
// makes all further reads fail. Check ok() once at the end, or done(), which also requires that
// nothing is left.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view bytes) : rest_(bytes) {}
  std::uint8_t u8();
  std::uint32_t u32();
  std::uint64_t u64();
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  std::string_view text();
  void skip_rest() { rest_ = {}; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view take(std::size_t bytes);
  std::string_view rest_;
  bool ok_ = true;
};

void put_u8(std::string& out, std::uint8_t value);
void put_u32(std::string& out, std::uint32_t value);
void put_u64(std::string& out, std::uint64_t value);
// Reads a little-endian number of at most 8 bytes.
std::uint64_t read_little(std::string_view bytes);
void put_text(std::string& out, std::string_view text);

}  // namespace ivy::store
