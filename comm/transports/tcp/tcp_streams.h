// SPDX-License-Identifier: Apache-2.0
// Divides the connection between two ranks of different hosts into *streams*, each a separate TCP
// connection, over which a long message is sent in *stripes*. Both ranks derive the stripes from
// the message's length and the number of streams, so they need no negotiation.
//
// The constants that determine the speed between hosts are defined here.
//
// Pure except for queries of a socket. Thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/contract/status.h"

namespace ivy::comm {

inline constexpr std::uint32_t kStreamsMax = 16;
// Between two ranks of one machine, a second stream only takes processor time from the first.
inline constexpr std::uint32_t kStreamsOnOneMachine = 1;
// Between machines one stream is limited to one TCP window and one queue of the network card.
inline constexpr std::uint32_t kStreamsBetweenMachines = 4;
// Approximate limit of the descriptors of all streams of a communicator.
inline constexpr std::size_t kDefaultSockets = 256;
// Minimum length of a stripe, for which the cost of a further system call is negligible.
inline constexpr std::size_t kMinStripe = std::size_t{128} << 10;
// Limit of one system call, so that sending and receiving alternate.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// The limit if the kernel paces sending by the rate at which data was received (BBR). A rank that
// is busy sending receives nothing, so its peer's kernel assumes that the path is slow, and does
// not revise that.
inline constexpr std::size_t kPacedChunkBytes = std::size_t{128} << 10;
// Size of the parts of a message that is processed as it arrives: small enough to be still in the
// processor's caches, and large enough to amortize the overhead.
inline constexpr std::size_t kPart = std::size_t{128} << 10;
inline constexpr std::size_t kMinPartBytes = std::size_t{16} << 10;

struct Stripe {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t bytes() const { return end - begin; }
};

// Returns how many streams, from the first on, carry a message of that length.
inline std::uint32_t stripe_count(std::size_t bytes, std::uint32_t streams) {
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(bytes / kMinStripe, 1, std::max<std::uint32_t>(1, streams)));
}

// Returns the stripe of stream `index`, which has whole cache lines, and so whole elements.
inline Stripe stripe_of(std::size_t bytes, std::uint32_t count, std::uint32_t index) {
  constexpr std::size_t kLine = 64;
  const std::size_t each = (bytes / count + kLine - 1) / kLine * kLine;
  const std::size_t begin = std::min(bytes, each * index);
  return {begin, index + 1 == count ? bytes : std::min(bytes, begin + each)};
}

// Parses IVY_TCP_STREAMS; 0 means that it is not set. Fails with InvalidArgument if it is not a
// number from 1 to kStreamsMax.
Result<std::uint32_t> wanted_streams(const char* text);

// Returns the number of streams if the user sets none. `ranks` is the size of the communicator.
inline std::uint32_t default_stream_count(bool is_on_one_machine, std::size_t ranks) {
  if (is_on_one_machine) return kStreamsOnOneMachine;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(
      kDefaultSockets / std::max<std::size_t>(1, ranks), 1, kStreamsBetweenMachines));
}

// Returns whether both ends of that connection are on this machine.
bool is_on_this_machine(int socket);
// Returns the number of bytes that one call may move on that connection.
std::size_t chunk_bytes_of(int socket);

}  // namespace ivy::comm
