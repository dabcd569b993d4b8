// SPDX-License-Identifier: Apache-2.0
// The store's HTTP dialect, the protocol that Horovod's launcher offers to Horovod's Gloo
// controller:
//
//   PUT /SCOPE/KEY      sets the key to the body
//   GET /SCOPE/KEY      returns its value, or 404 if it has none; the client then retries
//   DELETE /SCOPE/KEY   marks a member as finished; the last member's request empties the scope
//
// A scope's members are its keys: each rank sets one, named by its number. Keys are in torch's
// space with the prefix "http:". Clients do not authenticate; like torch's clients, they are
// admitted by their host and user (server/admission.h).
//
// A connection carries one request and is closed after the answer, as Horovod's client expects. So
// a client costs at most one request and one value, and bytes after the request are never read as
// another one. The Host header must be a numeric address or localhost; otherwise a web page whose
// name was bound to this address in DNS (rebinding) could send requests here.
//
// Pure. Not thread-safe. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// Returns whether these are the first bytes of an HTTP connection.
bool begins_http(std::string_view bytes);

class HttpDialect {
 public:
  HttpDialect(Engine& engine, std::string address)
      : engine_(engine), address_(std::move(address)) {}
  ~HttpDialect();
  HttpDialect(const HttpDialect&) = delete;
  HttpDialect& operator=(const HttpDialect&) = delete;

  // Appends the answer, or the rejection, to `unsent`. An error ends the connection.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, std::string& unsent,
                       Replies& out);
  // Returns whether the request was answered; then nothing more is read and the connection ends.
  bool is_over() const { return is_over_; }
  std::size_t kept_bytes() const { return buffer_.size(); }
  ClientId client() const { return client_; }

 private:
  struct Head {
    std::string method;
    std::string path;
    std::size_t body_at = 0;  // Start of the body in buffer_.
    std::size_t body_bytes = 0;
  };
  // Arguments that all of one turn's calls of the engine share.
  struct Turn {
    std::uint64_t now_ns;
    Replies& out;
  };

  // The HTTP status of a rejection, and the reason.
  struct Rejection {
    std::string_view status;
    std::string why;
  };
  // Parses a complete head into head_. Returns a rejection if it is not acceptable.
  std::optional<Rejection> read_head();
  Result<void> serve(std::string body, Turn turn, std::string& unsent);
  Result<void> finish_member(const std::string& path, Turn turn);
  Result<ReplyBody> execute(Request request, Turn turn);

  Engine& engine_;
  const std::string address_;
  std::string buffer_;
  std::optional<Head> head_;
  bool is_over_ = false;
  ClientId client_ = 0;
  RequestId last_ = 0;
};

}  // namespace ivy::store
