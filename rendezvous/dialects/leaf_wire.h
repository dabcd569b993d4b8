// The messages between a leaf and the store, in frames of proto/wire/store_wire.h, after the
// handshake for the purpose "leaf". The engine's requests and replies travel whole (codec.h), so
// that a request means the same through a leaf as without one.
//
// clang-format off
//   up    JOIN        -    u32 client, u8 space, u8 has rank, u32 rank, u32 pid, u64 session,
//                          text its own address
//         LEAVE       -    u32 client
//         DESCRIBE    -    u32 client, u32 pid
//         COMPANIONS  -    u32 client, u32 id, u32 n, n (u32 client, u64 waited ns)    wait for the same
//         FOLLOW      id   u8 space, text key     as CHECK; if it is missing, FORGET comes when it is not
//         16 + kind   id   u32 client, the request's fields; deadlines as "ns from now"
//   down  0           id   u8 kind, the reply's fields; of reads one more u8 for each value: 1 = you may
//                          keep it until FORGET
//         a Code      id   text
//         255         0    FORGET u8 space, text key    once for everything that was followed or kept
// clang-format on
//
// Pure. Thread: any.
#pragma once

#include <cstdint>

#include "proto/wire/store_wire.h"

namespace ivy::store {

enum class LeafOp : std::uint8_t {
  kJoin = 1,
  kLeave = 2,
  kDescribe = 3,
  kCompanions = 4,
  kFollow = 5,
  kFirstRequest = 16,  // From here on, a request: its index in Request is added.
};
inline constexpr std::uint8_t kForgetFrame = 255;
// Answers to FOLLOW, besides 1 (the key exists). kMissing: no FORGET will come.
inline constexpr std::int64_t kMissing = 0;
inline constexpr std::int64_t kMissingAndFollowed = 2;

// Room for the longest request in this encoding, and for a reply with a mark for each value.
inline constexpr std::size_t kMaxLeafFrameBytes = kMaxFrameBytes + (1u << 20);
// The most connections of one host, which has at most 4,096 workers.
inline constexpr std::size_t kMaxLeafClients = 16'384;

}  // namespace ivy::store
