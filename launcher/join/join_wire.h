// SPDX-License-Identifier: Apache-2.0
// Encodes messages of proto/wire/join.proto; CtlDecoder (launcher/job/ctl_wire.h) splits the byte
// stream into messages again. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/ctl_wire.h"
#include "launcher/join/join_roll.h"
#include "proto/wire/join.pb.h"

namespace ivy {

std::string encode_join(const join::NodeSays& message);
std::string encode_join(const join::HeadSays& message);
join::Join encode_node(const JoiningNode& node);
// address: the node's address as seen here.
JoiningNode decode_node(const join::Join& message, const std::string& address);

// Passes each message in these bytes to take(). Returns false if the bytes are malformed or take()
// returns false.
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
