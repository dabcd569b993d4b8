// SPDX-License-Identifier: Apache-2.0
// The connections of a server and their clients. Thread: the loop's.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "proto/os/descriptor.h"
#include "rendezvous/dialects/connection.h"
#include "rendezvous/server/readiness.h"

namespace ivy::store {

enum class Dialect { kNative, kTorch };

// Sends as much of `unsent` as the socket accepts. The first `sent` bytes were sent before; they
// are erased occasionally.
enum class Sent { kAll, kNotAll, kBroken };
Sent send_some(int fd, std::string& unsent, std::size_t& sent);

// One connection. Its client leaves the engine when the connection closes.
struct Session {
  std::size_t unsent_bytes() const { return connection->unsent.size() - sent; }
  // Watches the socket for the wanted events. Returns false if the system cannot watch more
  // sockets.
  bool watch(const Readiness& readiness);
  void stop_watching(const Readiness& readiness);

  Descriptor socket;
  std::unique_ptr<Connection> connection;  // Never null; does nothing once the session is closed.
  std::string address;
  Dialect dialect = Dialect::kNative;
  std::uint64_t since_ns = 0;
  std::size_t sent = 0;  // Bytes of connection->unsent already sent.
  Wanted wanted = {};    // Events to watch for next.
  Wanted watched = {};   // Events that the set watches the socket for now.
  bool in_set = false;
  bool touched = false;  // It has replies to send or requests to serve.
  bool closed = false;
  ClientId client = 0;            // As returned by connection->client().
  std::size_t counted_bytes = 0;  // Its share of Sessions::torch_bytes().
  std::list<std::shared_ptr<Session>>::iterator position = {};  // Its position in Sessions::all_.
  bool unauthenticated = false;
  std::list<Session*>::iterator unauthenticated_position = {};
};
using SessionPointer = std::shared_ptr<Session>;

class Sessions {
 public:
  void add(const SessionPointer& session);
  void remove(Session& session);
  std::size_t size() const { return all_.size(); }
  std::vector<SessionPointer> all() const { return {all_.begin(), all_.end()}; }
  // Returns null if that client has no connection.
  SessionPointer find(ClientId client) const;
  // Updates the session's client and whether it has authenticated.
  void update(Session& session);
  std::size_t unauthenticated_count() const { return unauthenticated_.size(); }
  // Returns null if all have authenticated.
  SessionPointer oldest_unauthenticated() const;

  // Totals of all torch clients: connections, and the bytes of unfinished requests, of requests
  // behind a wait, and of unread replies.
  std::size_t torch_count() const { return torch_count_; }
  std::size_t torch_bytes() const { return torch_bytes_; }
  void count_bytes(Session& session);
  SessionPointer largest_torch() const;

 private:
  std::list<SessionPointer> all_;
  std::list<Session*> unauthenticated_;  // The oldest is at the front and is dropped first.
  std::unordered_map<ClientId, Session*> by_client_;
  std::size_t torch_count_ = 0;
  std::size_t torch_bytes_ = 0;
};

}  // namespace ivy::store
