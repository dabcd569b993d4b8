// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the messages of proto/wire/join.proto between node 0 and the other nodes'
// ivyruns. CtlDecoder (launcher/job/control/ctl_wire.h) splits the byte stream into messages. Pure;
// thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/control/ctl_wire.h"
#include "launcher/join/joined_node_list.h"
#include "proto/wire/join.pb.h"

namespace ivy {

std::string encode_join(const join::NodeMessage& message);  // From a node to node 0.
// From node 0, the head of the job, to a node.
std::string encode_join(const join::NodeZeroMessage& message);
join::Join encode_node(const JoiningNode& node);
// address: the node's address as node 0 sees it.
JoiningNode decode_node(const join::Join& message, const std::string& address);

// Passes each complete message in the bytes to take(). Returns false if the bytes are malformed or
// take() has returned false.
template <class Message, class Take>
bool take_messages(CtlDecoder& decoder, std::string_view bytes, Take take) {
  decoder.feed(bytes);
  for (;;) {
    const Result<std::optional<std::string>> next = decoder.next();
    if (!next.ok()) return false;
    if (!*next) return true;
    Message message;
    if (!message.ParseFromString(**next) || !take(message)) return false;
  }
}

}  // namespace ivy
