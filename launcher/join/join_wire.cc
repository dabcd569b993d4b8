// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/join_wire.h"

#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

// Longest host name on Linux.
constexpr std::size_t kHostNameBytes = 64;

}  // namespace

std::string encode_join(const join::NodeMessage& message) {
  return framed(message.SerializeAsString());
}

std::string encode_join(const join::NodeZeroMessage& message) {
  return framed(message.SerializeAsString());
}

join::Join encode_node(const JoiningNode& node) {
  join::Join message;
  message.set_build(node.build);
  message.set_node_rank(static_cast<std::uint32_t>(node.rank));
  message.set_host_name(node.host);
  message.set_process(node.process);
  for (const auto& [name, value] : node.terms) {
    join::Term& term = *message.add_terms();
    term.set_name(name);
    term.set_value(value);
  }
  return message;
}

JoiningNode decode_node(const join::Join& message, const std::string& address) {
  JoiningNode node;
  node.rank = static_cast<int>(message.node_rank());
  // The name appears in labels and messages, so it must be printable.
  node.host = RemoteText(message.host_name().substr(0, kHostNameBytes)).line();
  node.address = address;
  node.process = message.process();
  node.build = message.build();
  for (const join::Term& term : message.terms()) node.terms.emplace_back(term.name(), term.value());
  return node;
}

}  // namespace ivy
