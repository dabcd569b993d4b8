// torch's TCPStore protocol on the engine: bytes of one connection in, engine calls and bytes out.
// Dialect C (torch 2.2 and later, opcodes 0-18) and A (up to 2.0) are told apart by the first
// bytes; others are refused in one line. Facts and quirks: the protocol table in
// rendezvous/README.md.
//
// A connection's requests are answered in order; only CANCEL_WAIT overtakes a wait. Requests may
// arrive in any cut and pipelined; each is applied once, when its last byte is there. Lengths are
// checked before anything is allocated.
//
// Pure. Thread: one at a time. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// The most bytes of one request: clients of this dialect are not authenticated.
inline constexpr std::size_t kMaxTorchRequestBytes = 64u << 20;
// The most bytes that may follow a WAIT or BARRIER before its answer: torch sends only its cancel.
inline constexpr std::size_t kMaxBehindTorchWait = 1u << 20;

class TorchDialect {
 public:
  // Joins the engine, as a client of the torch space, when the first request is there.
  TorchDialect(StoreFront& engine, std::uint32_t generation, std::string address);
  ~TorchDialect();  // Leaves.
  TorchDialect(const TorchDialect&) = delete;
  TorchDialect& operator=(const TorchDialect&) = delete;

  // Takes bytes from the client, or none to go on after a wait was answered. Replies for this and
  // for other connections are added to `out`; the owner hands each to its connection's reply(). An
  // error ends the connection; its message is for the log.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  // Appends the bytes of a reply of the engine for the client. An error ends the connection: this
  // protocol cannot express it.
  Result<void> reply(const Reply& reply, std::string& bytes);
  // True if a wait was answered while more requests had come: call receive({}).
  bool has_more() const;
  // The bytes that are kept of incomplete or waiting requests and of watched values.
  std::size_t kept_bytes() const;
  // Returns 0 before the first request.
  ClientId client() const;
  // "torch 2.2 or later", "torch 2.0 or before", or empty.
  std::string_view dialect() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
