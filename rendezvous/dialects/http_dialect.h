// SPDX-License-Identifier: Apache-2.0
// The store's HTTP face, as Horovod's launcher serves it to Horovod's Gloo controller:
//
//   PUT /SCOPE/KEY      sets the key to the body
//   GET /SCOPE/KEY      its value; 404 while there is none, and the client asks again
//   DELETE /SCOPE/KEY   a member has finished with the scope, which is emptied by the last of them
//
// A scope's members are the keys that it has: each rank sets one of its own, by its number. Keys
// are in torch's space behind "http:". Clients do not authenticate: Admission decides, as for
// torch's.
//
// A connection carries one request and is closed after the answer, as Horovod's client expects. So
// a client costs at most one request and one value, and bytes after the request are never read as
// another one. The Host header must be a numeric address or localhost: a web page whose name was
// bound to this address in DNS (rebinding) could send requests here otherwise.
//
// Pure. Thread: one at a time. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// True if these are the first bytes of an HTTP connection.
bool begins_http(std::string_view bytes);

class HttpDialect {
 public:
  HttpDialect(Engine& engine, std::string address)
      : engine_(engine), address_(std::move(address)) {}
  ~HttpDialect();
  HttpDialect(const HttpDialect&) = delete;
  HttpDialect& operator=(const HttpDialect&) = delete;

  // Appends the answer to `unsent`, of a refusal too. An error ends the connection.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, std::string& unsent,
                       Replies& out);
  // The request has been answered: nothing more is read, and the connection ends.
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
  // The parts of a call of the engine that are the same for each.
  struct Turn {
    std::uint64_t now_ns;
    Replies& out;
  };

  // The status of a rejection, with the reason.
  struct Refusal {
    std::string_view status;
    std::string why;
  };
  std::optional<Refusal> read_head();
  Result<void> serve(std::string body, Turn turn, std::string& unsent);
  Result<void> finish_member(const std::string& path, Turn turn);
  Result<ReplyBody> ask(Request request, Turn turn);

  Engine& engine_;
  const std::string address_;
  std::string buffer_;
  std::optional<Head> head_;
  bool is_over_ = false;
  ClientId client_ = 0;
  RequestId last_ = 0;
};

}  // namespace ivy::store
