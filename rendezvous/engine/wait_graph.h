// SPDX-License-Identifier: Apache-2.0
// A snapshot of the engine for diagnosis: what each client waits for, and the last request of every
// client. explanation.h turns it into text. Also the table of clients. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/engine/contents.h"
#include "rendezvous/engine/requests.h"
#include "rendezvous/engine/waiters.h"

namespace ivy::store {

struct KnownClient {
  ClientInfo info;
  std::uint64_t last_ns = 0;
  const char* last_op = kConnected;
  std::string last_key = {};
  // `last_op` of a client that has sent no request yet.
  static constexpr const char* kConnected = "connected";
};
using Clients = std::unordered_map<ClientId, KnownClient>;

struct Waiting {
  ClientInfo client;
  std::string what;                  // "key", "counter", "queue" or "barrier 'x' of 8".
  std::vector<std::string> missing;  // Keys, at most 16; empty for a barrier.
  std::size_t missing_count = 0;
  std::vector<std::uint32_t> absent;  // Members of a barrier that have not arrived, at most 16.
  std::uint64_t since_ns = 0;
};
struct LastRequest {
  ClientInfo client;
  std::uint64_t last_ns = 0;
  std::string last_request;  // The last request, such as "set /default_pg/0//cuda//0".
};
struct WaitGraph {
  std::vector<Waiting> waiting;
  std::vector<LastRequest> clients;
};

// Describes one wait. Updates the waiters first, because a key that existed may have been deleted.
Waiting describe(WaiterId id, Waiters& waiters, const Contents& contents, const Clients& clients);

// Leaves out `asker`, the client that requested the graph, if it has sent no other request: it does
// not belong to the job.
WaitGraph wait_graph_of(Waiters& waiters, const Contents& contents, const Clients& clients,
                        ClientId asker);

}  // namespace ivy::store
