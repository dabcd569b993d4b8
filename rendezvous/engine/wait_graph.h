// Which client waits for what, and what the others did last: the engine's state in values that can
// be put in words (explanation.h). Also the table of clients that it is made from. Pure.
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
  static constexpr const char* kConnected = "connected";  // It has sent no request yet.
};
using Clients = std::unordered_map<ClientId, KnownClient>;

struct Waiting {
  ClientInfo client;
  std::string what;                  // "wait", "barrier 'x' of 8", "queue".
  std::vector<std::string> missing;  // Keys, at most 16; for a barrier: nothing.
  std::size_t missing_count = 0;
  std::vector<std::uint32_t> absent;  // Barrier: members that have not come, at most 16.
  std::uint64_t since_ns = 0;
};
struct LastRequest {
  ClientInfo client;
  std::uint64_t last_ns = 0;
  std::string last_what;  // Its last request, such as "set /default_pg/0//cuda//0".
};
struct WaitGraph {
  std::vector<Waiting> waiting;
  std::vector<LastRequest> clients;
};

// Describes one wait. The waiters are brought up to date: a key that existed may be gone.
Waiting describe(WaiterId id, Waiters& waiters, const Contents& contents, const Clients& clients);

// Leaves out `asker`, the client that asks for it, if that has sent no other request: it takes no
// part in the job.
WaitGraph wait_graph_of(Waiters& waiters, const Contents& contents, const Clients& clients,
                        ClientId asker);

}  // namespace ivy::store
