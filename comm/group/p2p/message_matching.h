// SPDX-License-Identifier: Apache-2.0
// Matches messages to receives: posted receives, in order, and messages that arrived before their
// receive was posted. Messages of one rank match in the order of their arrival.
//
// Pure; thread: one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "comm/group/p2p/message_request.h"

namespace ivy::comm {

inline constexpr std::size_t kUnexpectedBytesMax = std::size_t{256}
                                                   << 20;  // The most of one communicator.

// A message that arrives, or has arrived, without a receive for it.
struct UnexpectedMessage {
  MessageStatus status;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint8_t> data;
  bool is_complete = false;
  std::shared_ptr<MessageRequest> claimant;  // The request that matched it while it was arriving.
};

class MessageMatching {
 public:
  using Request = std::shared_ptr<MessageRequest>;
  using Message = std::shared_ptr<UnexpectedMessage>;

  void post(const Request& receive) { receives_.push_back(receive); }
  // The first posted receive that a message of that rank and tag goes to; null: none waits.
  Request take_receive(std::int32_t source, std::int32_t tag);
  // Forgets a receive that was posted and that no message has matched; false: there is none.
  bool withdraw(const Request& receive);
  // The first message that the receive may have, and that no other one has claimed; null: none.
  Message find(const MessageRequest& receive) const;

  // Memory for a message that is not expected. Null: kUnexpectedBytesMax are kept already.
  Message keep(const MessageStatus& status, Dtype dtype);
  // Messages to oneself are counted and not limited.
  Message keep_own(const MessageStatus& status, Dtype dtype);
  // Moves a complete message to its receive, and forgets it.
  void deliver(const Message& message, MessageRequest& receive);

  // True if a posted receive names that rank; and_anyone: or may take messages of any rank.
  bool is_wanted(std::int32_t source, bool and_anyone) const;
  // A posted receive that takes messages of any rank; null: there is none.
  const MessageRequest* receive_from_anyone() const;
  const MessageRequest* oldest_receive() const {
    return receives_.empty() ? nullptr : receives_.front().get();
  }
  // Takes all receives: those posted, and those that wait for the rest of their message.
  std::vector<Request> take_all_receives();

 private:
  std::list<Request> receives_;
  std::list<Message> unexpected_;
  std::size_t unexpected_bytes_ = 0;
};

}  // namespace ivy::comm
