// SPDX-License-Identifier: Apache-2.0
// Matches messages to receives. Holds posted receives, in order, and messages that arrived before
// their receive was posted. Messages of one rank match in the order of their arrival.
//
// Makes no system calls. Not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "comm/group/p2p/message_request.h"

namespace ivy::comm {

// Limit for all unexpected messages of one communicator.
inline constexpr std::size_t kUnexpectedBytesMax = std::size_t{256} << 20;

// A message that arrives, or has arrived, before its receive was posted.
struct UnexpectedMessage {
  MessageStatus status;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint8_t> data;
  bool is_complete = false;
  // The request that matched the message while it was arriving.
  std::shared_ptr<MessageRequest> claimant;
};

class MessageMatching {
 public:
  using Request = std::shared_ptr<MessageRequest>;
  using Message = std::shared_ptr<UnexpectedMessage>;

  void post(const Request& receive) { receives_.push_back(receive); }
  // Removes and returns the first posted receive for a message of that rank and tag, or returns
  // null.
  Request take_receive(std::int32_t source, std::int32_t tag);
  // Removes a posted receive that no message has matched. Returns false if there is none.
  bool withdraw(const Request& receive);
  // Returns the first unclaimed message that the receive can take, or null.
  Message find(const MessageRequest& receive) const;

  // Returns memory for an unexpected message, or null if kUnexpectedBytesMax bytes are already
  // kept.
  Message keep(const MessageStatus& status, Dtype dtype);
  // Returns memory for a message of this rank to itself, which is counted but not limited.
  Message keep_own(const MessageStatus& status, Dtype dtype);
  // Moves a complete message to its receive and removes it.
  void deliver(const Message& message, MessageRequest& receive);

  // Returns whether a posted receive names that rank or, with `or_any`, accepts any rank.
  bool is_wanted(std::int32_t source, bool or_any) const;
  // Returns a posted receive that accepts any rank, or null.
  const MessageRequest* receive_from_any() const;
  const MessageRequest* oldest_receive() const {
    return receives_.empty() ? nullptr : receives_.front().get();
  }
  // Removes and returns all receives: posted ones, and ones that wait for the rest of their
  // message.
  std::vector<Request> take_all_receives();

 private:
  std::list<Request> receives_;
  std::list<Message> unexpected_;
  std::size_t unexpected_bytes_ = 0;
};

}  // namespace ivy::comm
