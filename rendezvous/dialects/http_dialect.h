// The store's HTTP face, as Horovod's launcher serves it to Horovod's Gloo controller:
//
//   PUT /SCOPE/KEY      sets the key to the body
//   GET /SCOPE/KEY      its value; 404 while there is none, and the client asks again
//   DELETE /SCOPE/KEY   a member has finished with the scope, which is emptied by the last of them
//
// A scope's members are the keys that it has: each rank sets one of its own, by its number. Only
// the store itself speaks it, since every request must be answered at once. Keys are in torch's
// space behind "http:". Clients do not authenticate: Admission decides, as for torch's.
//
// Pure. Thread: one at a time. Lifetime: the engine outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/contract/status.h"
#include "rendezvous/engine/engine.h"

namespace ivy::store {

// True if a connection that begins so speaks HTTP.
bool begins_http(std::string_view bytes);

class HttpDialect {
 public:
  HttpDialect(Engine& engine, std::string address)
      : engine_(engine), address_(std::move(address)) {}
  ~HttpDialect();
  HttpDialect(const HttpDialect&) = delete;
  HttpDialect& operator=(const HttpDialect&) = delete;

  // Appends answers to `unsent`. An error ends the connection.
  Result<void> receive(std::string_view bytes, std::uint64_t now_ns, std::string& unsent,
                       Replies& out);
  std::size_t kept_bytes() const { return buffer_.size(); }
  ClientId client() const { return client_; }

 private:
  struct HttpRequest {
    std::string method;
    std::string path;
    std::string body;
  };
  // The parts of a call of the engine that are the same for each.
  struct Turn {
    std::uint64_t now_ns;
    Replies& out;
  };

  Result<bool> read_request(HttpRequest& request);
  Result<void> serve(HttpRequest request, Turn turn, std::string& unsent);
  Result<void> finish_member(const std::string& path, Turn turn);
  Result<ReplyBody> ask(Request request, Turn turn);

  Engine& engine_;
  const std::string address_;
  std::string buffer_;
  ClientId client_ = 0;
  RequestId last_ = 0;
};

}  // namespace ivy::store
