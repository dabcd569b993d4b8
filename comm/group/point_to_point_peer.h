// What PointToPoint keeps for each rank; private to its source files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/group/message_request.h"
#include "comm/transports/background_dial.h"
#include "comm/transports/byte_stream.h"

namespace ivy::comm {

inline constexpr std::uint32_t kMessageMagic = 0x50797649;  // "IvyP"

// Precedes every message of a stream.
struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint8_t dtype = 0;
  std::uint8_t zero[7] = {};
};
static_assert(sizeof(MessageHeader) == 24);

// A message that arrived before a receive for it was posted.
struct UnexpectedMessage {
  MessageStatus status;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint8_t> data;
  bool is_complete = false;
  std::shared_ptr<MessageRequest> claimant;  // The request that matched it while it was arriving.
};

struct MessagePeer {
  std::int32_t rank = 0;
  std::unique_ptr<BackgroundDial> dial;  // While the sink's connection is being made.
  std::unique_ptr<ByteSink> sink;
  std::unique_ptr<ByteSource> source;
  std::deque<std::shared_ptr<MessageRequest>> sends;
  // The message that is arriving: first its header, then its data into `target` or `unexpected`.
  MessageHeader header;
  std::size_t header_read = 0;
  std::size_t data_read = 0;
  std::shared_ptr<MessageRequest> target;
  std::shared_ptr<UnexpectedMessage> unexpected;

  bool is_in_message() const { return target != nullptr || unexpected != nullptr; }
};

}  // namespace ivy::comm
