// SPDX-License-Identifier: Apache-2.0
// Messages of proto/wire/join.proto as bytes; CtlDecoder (launcher/job/ctl_wire.h) cuts them again.
// Pure; thread: any.
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
// address: as it was seen here.
JoiningNode decode_node(const join::Join& message, const std::string& address);

// Gives take() each message of these bytes. False: they have another form, or take() said so.
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
