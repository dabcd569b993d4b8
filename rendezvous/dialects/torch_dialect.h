// SPDX-License-Identifier: Apache-2.0
// torch's TCPStore protocol: turns the bytes of one connection into engine calls, and replies into
// bytes. Dialect C (torch 2.2 and later, opcodes 0-18) and A (up to 2.0) are distinguished by the
// first bytes; other versions are rejected with one line in the log.
// docs/internals/store-protocols.md describes the protocol and its quirks.
//
// torch's `get` of a missing key is WAIT, then GET. The wait has no deadline here: when the
// client's own timeout has expired, it sends CANCEL_WAIT.
//
// A connection's requests are answered in order; only CANCEL_WAIT overtakes a wait. Requests may
// arrive in pieces and pipelined; each is executed once, when its last byte has arrived. Lengths
// are checked before anything is allocated.
//
// Pure. Not thread-safe. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// Limit of the bytes of one request: clients of this dialect are not authenticated.
inline constexpr std::size_t kMaxTorchRequestBytes = 64u << 20;
// Limit of the bytes that may follow a WAIT or BARRIER before its answer: torch sends only its
// cancel.
inline constexpr std::size_t kMaxAfterTorchWait = 1u << 20;

// Numbers of dialect C, to which those of A are mapped.
enum class TorchOp : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kCount = 7,
  kDelete = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLength = 16,
  kListKeys = 17,
  kBarrier = 18,
  kWatchKey = 19,  // Dialect A only; not a number on the wire.
};

class TorchDialect {
 public:
  // Joins the engine, as a client of the torch space, with the first request.
  TorchDialect(Engine& engine, std::uint32_t generation, std::string address)
      : engine_(engine), generation_(generation), address_(std::move(address)) {}
  ~TorchDialect();  // Its client leaves the engine.
  TorchDialect(const TorchDialect&) = delete;
  TorchDialect& operator=(const TorchDialect&) = delete;

  // Takes bytes from the client, or none to continue with bytes that were left over. Appends
  // replies for this and for other connections to `out`; the owner passes each to its connection's
  // reply(). An error ends the connection; its message is for the log.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, Replies& out);
  // Appends the encoded reply to `bytes`. An error ends the connection, because the protocol cannot
  // express the reply.
  Result<void> reply(const Reply& reply, std::string& bytes);
  // Returns whether more requests have arrived and can be served now, because a turn ended or a
  // wait was answered; if so, call receive({}).
  bool has_more() const { return waiting_ == 0 && has_more_; }
  // Bytes that are kept of incomplete or waiting requests and of watched values.
  std::size_t kept_bytes() const;
  // Returns 0 before the first request.
  ClientId client() const { return client_; }

 private:
  enum class Dialect { kUnknown, kA, kC };  // A: torch up to 2.0; C: from 2.2 on.
  // A request that has not arrived completely.
  struct Incoming {
    std::optional<TorchOp> op;
    std::size_t field = 0;   // Index into the fields of the op, after any '*'.
    bool counted = false;    // The count has been read.
    std::uint64_t left = 1;  // Repetitions that have not been read yet.
    std::vector<std::string> texts;
    std::int64_t number = 0;
    std::size_t bytes = 0;
  };

  Result<bool> recognize();
  // The results of the functions read_*() are false if the bytes received so far are not enough.
  Result<bool> read_request();
  Result<bool> read_op();
  Result<bool> read_count();
  Result<bool> read_field(char kind);
  Result<void> serve_all(std::uint64_t now_ns, Replies& out);
  Result<void> serve(std::uint64_t now_ns, Replies& out);
  RequestId apply(TorchOp op, Request request, std::uint64_t now_ns, Replies& out);
  Request request_of(TorchOp op);
  std::string take_text(std::size_t index);  // Moves it out of incoming_.
  std::vector<std::pair<std::string, std::string>> entries();
  Result<void> note_watch();
  Result<void> encode_watch(const ReplyBody& body, std::string& bytes);
  Result<void> watched_now(const Compared& present, std::string& bytes);
  Result<void> changed(const Changed& change, std::string& bytes);
  Result<void> count_watched(std::size_t before, std::size_t after);
  std::string_view rest() const { return std::string_view(buffer_).substr(consumed_); }
  void compact();
  // Dialect A has no CANCEL_WAIT: its client abandons a wait by sending another request on the same
  // connection.
  bool has_abandoned_wait() const;
  void end_abandoned_wait(std::uint64_t now_ns, Replies& out);
  bool next_is_cancel() const;

  Engine& engine_;
  const std::uint32_t generation_;
  const std::string address_;
  ClientId client_ = 0;
  Dialect dialect_ = Dialect::kUnknown;
  bool validated_ = false;
  std::string buffer_;
  std::size_t consumed_ = 0;
  Incoming incoming_;
  std::uint64_t requests_ = 0;
  RequestId waiting_ = 0;         // The waiting request that delays those after it, or 0.
  std::set<RequestId> given_up_;  // Waits of dialect A that were given up.
  bool has_more_ = false;         // Received bytes were left for another turn.
  // Dialect A: each watched key's last value.
  std::map<std::string, std::optional<std::string>> watched_;
  std::size_t watched_bytes_ = 0;
  std::deque<std::string> unanswered_watches_;  // Keys whose watch was not answered yet, in order.
};

}  // namespace ivy::store
