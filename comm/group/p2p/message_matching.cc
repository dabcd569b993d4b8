// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/message_matching.h"

#include <algorithm>
#include <cstring>

namespace ivy::comm {
namespace {

// Negative numbers stand for any rank and any tag.
bool fits(std::int32_t wanted, std::int32_t offered) { return wanted < 0 || wanted == offered; }

bool fits(const MessageRequest& receive, std::int32_t source, std::int32_t tag) {
  return fits(receive.peer, source) && fits(receive.tag, tag);
}

}  // namespace

MessageMatching::Request MessageMatching::take_receive(std::int32_t source, std::int32_t tag) {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Request& each) { return fits(*each, source, tag); });
  if (found == receives_.end()) return nullptr;
  Request receive = *found;
  receives_.erase(found);
  return receive;
}

bool MessageMatching::withdraw(const Request& receive) {
  const auto found = std::find(receives_.begin(), receives_.end(), receive);
  if (found == receives_.end()) return false;
  receives_.erase(found);
  return true;
}

MessageMatching::Message MessageMatching::find(const MessageRequest& receive) const {
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Message& each) {
    return each->claimant == nullptr && fits(receive, each->status.source, each->status.tag);
  });
  return found == unexpected_.end() ? nullptr : *found;
}

MessageMatching::Message MessageMatching::keep(const MessageStatus& status, Dtype dtype) {
  // Messages of this rank to itself may exceed the limit.
  const std::size_t kept = std::min(unexpected_bytes_, kUnexpectedBytesMax);
  if (status.bytes > kUnexpectedBytesMax - kept) return nullptr;
  return keep_own(status, dtype);
}

MessageMatching::Message MessageMatching::keep_own(const MessageStatus& status, Dtype dtype) {
  auto message = std::make_shared<UnexpectedMessage>();
  message->status = status;
  message->dtype = dtype;
  message->data.resize(status.bytes);
  unexpected_bytes_ += status.bytes;
  unexpected_.push_back(message);
  return message;
}

void MessageMatching::deliver(const Message& message, MessageRequest& receive) {
  receive.status = message->status;
  if (!message->data.empty()) std::memcpy(receive.data, message->data.data(), message->data.size());
  unexpected_bytes_ -= message->data.size();
  unexpected_.remove(message);
}

bool MessageMatching::is_wanted(std::int32_t source, bool or_any) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const Request& each) {
    return or_any ? fits(each->peer, source) : each->peer == source;
  });
}

const MessageRequest* MessageMatching::receive_from_any() const {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [](const Request& each) { return each->peer == kAnySource; });
  return found != receives_.end() ? found->get() : nullptr;
}

std::vector<MessageMatching::Request> MessageMatching::take_all_receives() {
  std::vector<Request> all(receives_.begin(), receives_.end());
  receives_.clear();
  for (const Message& message : unexpected_) {
    if (message->claimant != nullptr) all.push_back(message->claimant);
  }
  return all;
}

}  // namespace ivy::comm
