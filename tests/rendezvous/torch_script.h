// SPDX-License-Identifier: Apache-2.0
// Clients of torch's protocol on one engine, with input in pieces of any size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/torch_dialect.h"
#include "rendezvous/engine/engine.h"

namespace ivy::test {

// ---- Bytes as torch's client writes them --------------------------------------------------------
inline std::string number(std::int64_t value) {
  std::string out;
  store::put_u64(out, static_cast<std::uint64_t>(value));
  return out;
}
inline std::string text(std::string_view bytes) {
  return number(static_cast<std::int64_t>(bytes.size())) + std::string(bytes);
}
inline std::string opcode(int op) { return std::string(1, static_cast<char>(op)); }
inline std::string word32(std::uint32_t value) {
  std::string out;
  store::put_u32(out, value);
  return out;
}
inline std::string keys(const std::vector<std::string>& names) {
  std::string out = number(static_cast<std::int64_t>(names.size()));
  for (const std::string& name : names) out += text(name);
  return out;
}

// Drives dialects like a server, without sockets.
class TorchScript {
 public:
  explicit TorchScript(std::size_t cut = 0) : cut_(cut) {}

  // `cut` is the size of each piece in bytes; 0 means one piece.
  void feed(int client, const std::string& bytes) {
    const std::size_t piece = cut_ == 0 ? std::max<std::size_t>(bytes.size(), 1) : cut_;
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      receive(client, std::string_view(bytes).substr(at, piece));
  }
  void receive(int client, std::string_view bytes) {
    if (closed.contains(client)) return;
    auto& connection = connections_[client];
    if (connection == nullptr) {
      connection = std::make_unique<store::TorchDialect>(engine, engine.generation(),
                                                         "10.0.0." + std::to_string(client));
    }
    turn(client, bytes);
    // Continues with every connection that has more to serve.
    for (bool again = true; again;) {
      again = false;
      for (const auto& [name, dialect] : connections_) {
        if (closed.contains(name) || !dialect->has_more()) continue;
        turn(name, {});
        again = true;
      }
    }
  }
  void hang_up(int client) { connections_.erase(client); }

  store::Engine engine;
  std::uint64_t now_ns = 1;
  std::map<int, std::string> out;     // Bytes to each client.
  std::map<int, std::string> closed;  // Reasons.

 private:
  void turn(int client, std::string_view bytes) {
    store::Replies replies;
    const Result<void> taken = connections_.at(client)->receive(bytes, now_ns, replies);
    for (const store::Reply& reply : replies) {
      for (const auto& [name, dialect] : connections_) {
        if (dialect->client() != reply.client || closed.contains(name)) continue;
        const Result<void> printed = dialect->reply(reply, out[name]);
        if (!printed.ok()) closed[name] = printed.error().message;
      }
    }
    if (!taken.ok()) closed[client] = taken.error().message;
  }

  std::size_t cut_;
  std::map<int, std::unique_ptr<store::TorchDialect>> connections_;
};

}  // namespace ivy::test
