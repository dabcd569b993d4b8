// The native dialect on the engine: frames of proto/wire/store_wire.h in, engine calls and frames
// out. The handshake has been done before (connection.h). Pure. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

class NativeDialect {
 public:
  static Result<std::unique_ptr<NativeDialect>> make(StoreFront& engine, ClientInfo info,
                                                     std::uint64_t now_ns);
  ~NativeDialect();  // Leaves the engine.

  // See TorchDialect.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  void reply(const Reply& reply, std::string& bytes);
  // True if frames have arrived that are left for another turn: call receive({}).
  bool has_more() const;
  ClientId client() const;

 private:
  struct State;
  explicit NativeDialect(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
