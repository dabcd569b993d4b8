// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of PointToPoint: its options, the message format on a stream, and the state
// of each rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/p2p/message_display.h"
#include "comm/group/p2p/message_matching.h"
#include "comm/group/p2p/message_request.h"
#include "comm/transports/byte_stream.h"
#include "comm/transports/tcp/background_dial.h"
#include "comm/transports/tcp/tcp_mesh.h"

namespace ivy::comm {

struct PointToPointOptions {
  std::string communicator;
  std::int32_t self = 0;
  std::vector<std::int32_t> member_of;  // Each rank's index on this host, or -1 for another host.
  std::vector<TcpPeer> peers;
  std::chrono::microseconds spin{200};  // Zero if there are more ranks than processors.
  // Breaks the communicator, which calls PointToPoint::break_with(). If null, a failure only ends
  // the messages.
  FailureHandler* handler = nullptr;
  std::unique_ptr<MessageDisplay> board;  // If null, waiting messages are not shown.

  const TcpPeer& peer(std::int32_t rank) const { return peers[static_cast<std::size_t>(rank)]; }
  std::int32_t member(std::int32_t rank) const { return member_of[static_cast<std::size_t>(rank)]; }
  bool is_remote(std::int32_t rank) const { return member(rank) < 0; }
};

inline constexpr std::uint32_t kMessageMagic = 0x50797649;  // The bytes "IvyP", little-endian.

// Precedes every message of a stream.
struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint8_t dtype = 0;
  std::uint8_t is_lent = 0;  // 1 if the stream lends the data (byte_stream.h) and no data follows.
  std::uint8_t zero[6] = {};
};
static_assert(sizeof(MessageHeader) == 24);

struct MessagePeer {
  std::int32_t rank = 0;
  std::unique_ptr<BackgroundDial> dial;  // Set while the sink's connection is being made.
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
  std::deque<std::shared_ptr<MessageRequest>> sends;
  // The message that is arriving: first its header, then its data into `target` or `unexpected`.
  MessageHeader header;
  std::size_t header_read = 0;
  std::size_t data_read = 0;
  std::optional<bool> can_read;  // Whether the peer's memory can be read, once that was tried.
  std::shared_ptr<MessageRequest> target;
  std::shared_ptr<UnexpectedMessage> unexpected;

  bool is_in_message() const { return target != nullptr || unexpected != nullptr; }
  bool has_begun() const { return is_in_message() || header_read > 0; }
  // The receive that the arriving message has matched, or null.
  const MessageRequest* receiver() const {
    return unexpected != nullptr ? unexpected->claimant.get() : target.get();
  }
  MessageStatus arriving() const { return {rank, header.tag, header.bytes}; }
};

}  // namespace ivy::comm
