// SPDX-License-Identifier: Apache-2.0
// A request during its execution: its client, its replies, and the parts of the engine that it may
// use. serve_values.cc and serve_synchronization.cc implement each request. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/engine/contents.h"
#include "rendezvous/engine/requests.h"
#include "rendezvous/engine/wait_graph.h"
#include "rendezvous/engine/waiters.h"
#include "rendezvous/engine/watches.h"

namespace ivy::store {

// Removes a wait. A member that leaves a barrier no longer counts as arrived.
void forget_wait(WaiterId id, Waiters& waiters, Contents& contents);

struct Serving {
  template <class Body>
  void answer(Body body) {
    answer_to(client, id, std::move(body), out);
  }
  template <class Body>
  void answer(const Waiter& waiter, Body body) {
    answer_to(waiter.client, waiter.request, std::move(body), out);
  }
  const Contents::Entry* find(const std::string& key) const { return contents.find(space, key); }
  auto exists() const {
    return [this](const std::string& key) { return contents.exists(space, key); };
  }
  Waiter waiter(WaitKind kind, std::vector<std::string> keys, std::uint64_t deadline_ns) const;
  Result<void> check_wait(const std::vector<std::string>& keys) const;
  // Answers with an error if the limits allow no more waits.
  void begin_wait(Waiter waiter);
  // Notifies all clients that wait for the key, or watch it, of a write.
  void notify_written(const std::string& key);
  void notify_watches(const std::string& key, Changed::Kind kind, const std::string& value) {
    if (!watches.empty()) watches.notify(space, {kind, key, value}, out);
  }
  // Updates a waiter after a key that it misses was written.
  void settle(WaiterId waiter, const std::string& key);

  Contents& contents;
  Waiters& waiters;
  Watches& watches;
  const Clients& clients;
  const EngineLimits& limits;
  Replies& out;
  const ClientId client;
  const RequestId id;
  const Space space;
  const std::uint64_t now_ns;
};

}  // namespace ivy::store
