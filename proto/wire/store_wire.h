// Frames of the store's native dialect. One connection carries, after the handshake
// (proto/wire/handshake.h), requests with ids of the client's choice, pipelined at will; replies
// come in the order in which they become known, so a wait does not delay other requests.
//
// clang-format off
//   request  u32 length | u8 op     | u32 id | payload       length counts what follows itself
//   reply    u32 length | u8 status | u32 id | payload       status: 0, or a Code of status.h
//
// The first reply has the number 0: the welcome, or why there is none. Requests begin at 1.
//
// Integers are little endian. A text (key, value, name, prefix) is u32 length and bytes. An error's
// payload is one text.
//
// A client that may send a SET, SET_ONCE, MULTI_SET or DELETE again adds kNumberedOp to the op and
// puts before the payload: u64 number, from 1 on in its session (handshake.h) | u64 lowest number
// to which it has heard no answer | u8 1: it was sent before. Such a request is done once.
//
//   op            payload of the request                 payload of the reply
//   SET           key, value                             -
//   SET_ONCE      key, value                             -     AlreadyExists unless equal
//   GET           key                                    value; NotFound
//   WAIT          u64 timeout_ms, u32 n, n keys          -     DeadlineExceeded names missing keys
//   WAIT_GET      u64 timeout_ms, key                    value
//   CHECK         u32 n, n keys                          u8 1: all exist
//   ADD           key, i64 delta                         i64 new value
//   COMPARE_SET   key, u8 expects, expected, desired     u8 stored, u8 exists, current
//   APPEND        key, value                             u64 new length
//   DELETE        key                                    u8 1: it was there
//   MULTI_GET     u32 n, n keys                          n values; NotFound names the first missing
//   MULTI_SET     u32 n, n (key, value)                  -     all or nothing
//   QUEUE_PUSH    key, value                             u64 new length
//   QUEUE_POP     u64 timeout_ms, key                    value
//   QUEUE_LENGTH  key                                    u64
//   LIST          prefix, u32 limit, after               u8 more, u32 n, n keys in order, behind after
//   COUNT         prefix                                 u64
//   BARRIER       u64 timeout_ms, name, u32 size,        u64 round; reusable; a member counts once
//                 u32 member, u64 call
//   WATCH         prefix                                 -, then one reply per change with this id:
//                                                        u8 1 set 2 deleted 3 overflow, key, value
//   CANCEL        u32 id                                 -     that request answers Cancelled first
//   PING          text                                   text
//   WHY           -                                      text: who waits for whom
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

namespace ivy::store {

enum class Op : std::uint8_t {
  kSet = 1,
  kSetOnce = 2,
  kGet = 3,
  kWait = 4,
  kWaitGet = 5,
  kCheck = 6,
  kAdd = 7,
  kCompareSet = 8,
  kAppend = 9,
  kDelete = 10,
  kMultiGet = 11,
  kMultiSet = 12,
  kQueuePush = 13,
  kQueuePop = 14,
  kQueueLength = 15,
  kList = 16,
  kCount = 17,
  kBarrier = 18,
  kWatch = 19,
  kCancel = 20,
  kPing = 21,
  kWhy = 22,
};

inline constexpr std::uint8_t kNumberedOp = 0x80;
// A client repeats a numbered request for at most this long, and the store recognizes it for longer
// (rendezvous/engine/answered_requests.h).
inline constexpr std::chrono::minutes kRepeatFor{5};

// Limits that hold before anything is allocated.
inline constexpr std::size_t kMaxKeyBytes = 8u << 10;
inline constexpr std::size_t kMaxValueBytes = 8u << 20;
inline constexpr std::size_t kMaxKeysPerRequest = 128u << 10;
inline constexpr std::size_t kMaxFrameBytes = 64u << 20;
// The most bytes that the values, or the keys, of one reply may take together, counting a text's
// length and its bytes. torch's lengths have eight bytes; some room is left for the head.
inline constexpr std::size_t kReplyTextBytes = 8;
inline constexpr std::size_t kMaxReplyBytes = kMaxFrameBytes - 1024;
inline constexpr std::size_t kMaxStoreBytes = 1u << 30;
inline constexpr std::size_t kMaxKeys = 1u << 20;
inline constexpr std::uint64_t kForeverMs = ~std::uint64_t{0};

struct FrameHead {
  std::uint8_t kind = 0;  // Op or status.
  std::uint32_t id = 0;
};

struct WireFrame {
  FrameHead head;
  std::string payload;
};

// Appends one frame.
void append_frame(std::string& out, FrameHead head, std::string_view payload);

// Bytes to frames, any cut. An error (a length beyond max_bytes, or below a head) is final.
class WireDecoder {
 public:
  explicit WireDecoder(std::size_t max_bytes) : max_bytes_(max_bytes) {}
  void feed(std::string_view bytes);
  // Returns the next frame, or nothing if more bytes are needed. The cost is linear in the bytes
  // fed, however they are cut.
  Result<std::optional<WireFrame>> next();
  void limit(std::size_t max_bytes) { max_bytes_ = max_bytes; }

 private:
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t consumed_ = 0;
};

// Reads the fields of a payload, in order. Reading past the end, or a text longer than what is
// left, fails all further reads; check ok() once at the end (done() also wants nothing to be left).
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
void put_text(std::string& out, std::string_view text);

}  // namespace ivy::store
