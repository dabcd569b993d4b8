// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/joined_node.h"

#include <algorithm>
#include <utility>

#include "launcher/join/join_wire.h"

namespace ivy {

void JoinedNode::send(const join::NodeZeroMessage& message) {
  std::string bytes = encode_join(message);
  if (!absence) stream->write(bytes);
  if (host >= 0) unacknowledged_.push_back(std::move(bytes));
}

void JoinedNode::drop_acknowledged(std::uint64_t messages) {
  for (; acknowledged_ < messages && !unacknowledged_.empty(); ++acknowledged_)
    unacknowledged_.pop_front();
}

std::uint64_t JoinedNode::take_consumed(std::uint64_t total) {
  const std::uint64_t now = std::max(consumed_, total);
  const std::uint64_t bytes = std::min(unconsumed, now - std::exchange(consumed_, now));
  unconsumed -= bytes;
  return bytes;
}

bool JoinedNode::is_new_signal(std::uint32_t number) {
  if (number <= signals_) return false;
  signals_ = number;
  return true;
}

void JoinedNode::move_to(JoinedNode& other) {
  std::swap(stream, other.stream);
  std::swap(decoder, other.decoder);
  std::swap(*this, other);
  other.absence = nullptr;
  stream->stop();
  for (const std::string& bytes : other.unacknowledged_) other.stream->write(bytes);
}

}  // namespace ivy
