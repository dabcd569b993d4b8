// SPDX-License-Identifier: Apache-2.0
// The native dialect of the engine: decodes frames (proto/wire/store_wire.h) into engine calls and
// encodes replies. connection.h performs the handshake before. Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

class NativeDialect {
 public:
  static Result<std::unique_ptr<NativeDialect>> make(Engine& engine, ClientInfo info,
                                                     std::uint64_t now_ns);
  ~NativeDialect() { engine_.leave(client_); }
  NativeDialect(const NativeDialect&) = delete;
  NativeDialect& operator=(const NativeDialect&) = delete;

  // See TorchDialect for both.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  void reply(const Reply& reply, std::string& bytes);
  // Returns whether received frames were left for another turn; if so, call receive({}).
  bool has_more() const { return turn_over_; }
  ClientId client() const { return client_; }

 private:
  NativeDialect(Engine& engine, ClientId client) : engine_(engine), client_(client) {}
  Result<void> serve(const WireFrame& frame, std::uint64_t now_ns, Replies& out);

  Engine& engine_;
  const ClientId client_;
  WireDecoder decoder_{kMaxFrameBytes};
  bool turn_over_ = false;
};

}  // namespace ivy::store
