// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/wait_graph.h"

#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

constexpr std::size_t kNamed = 16;

void describe_barrier(const std::string& name, const Contents::Barrier& barrier, Waiting& waiting) {
  waiting.what = "barrier '" + shown_key(name) + "' of " + std::to_string(barrier.size);
  waiting.missing_count = barrier.size - barrier.arrived.size();
  for (std::uint32_t member = 0; member < barrier.size && waiting.absent.size() < kNamed; ++member)
    if (!barrier.arrived.contains(member)) waiting.absent.push_back(member);
}

}  // namespace

Waiting describe(WaiterId id, Waiters& waiters, const Contents& contents, const Clients& clients) {
  const Waiter& waiter = *waiters.find(id);
  if (waiter.kind == WaitKind::kKeys) {
    waiters.recheck(id, [&](const std::string& key) { return contents.exists(waiter.space, key); });
  }
  Waiting waiting;
  const auto client = clients.find(waiter.client);
  if (client != clients.end()) waiting.client = client->second.info;
  waiting.since_ns = waiter.since_ns;
  if (waiter.kind == WaitKind::kBarrier) {
    const auto& barriers = contents.of(waiter.space).barriers;
    const std::string& name = waiter.keys.front();
    describe_barrier(name, barriers.find(name)->second, waiting);
    return waiting;
  }
  waiting.what = waiter.kind == WaitKind::kItem     ? "queue"
                 : waiter.kind == WaitKind::kNumber ? "counter"
                                                    : "key";
  waiting.missing_count = waiter.missing.size();
  for (const std::string& key : waiter.keys) {
    if (waiting.missing.size() == kNamed) break;
    if (waiter.missing.contains(key)) waiting.missing.push_back(key);
  }
  return waiting;
}

WaitGraph wait_graph_of(Waiters& waiters, const Contents& contents, const Clients& clients,
                        ClientId asker) {
  WaitGraph graph;
  for (const WaiterId id : waiters.all())
    graph.waiting.push_back(describe(id, waiters, contents, clients));
  for (const auto& [id, client] : clients) {
    if (id == asker && client.last_op == std::string_view(KnownClient::kConnected)) continue;
    std::string last = client.last_op;
    if (!client.last_key.empty()) last += " " + client.last_key;
    graph.clients.push_back({client.info, client.last_ns, std::move(last)});
  }
  return graph;
}

}  // namespace ivy::store
