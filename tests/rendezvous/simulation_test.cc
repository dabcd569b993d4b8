// SPDX-License-Identifier: Apache-2.0
// Simulates a store from one seed. Clients of three kinds (the engine's own requests, native
// frames, torch's bytes) send requests that are cut and delayed at random. They hang up, cancel,
// run into deadlines and outlive generations. Afterwards:
// - the history of each object in each generation is linearizable (history.h),
// - every wait has an answer, or its key is missing,
// - no member left a barrier round before all members had arrived,
// - the engine's counters are zero.
// Native clients also lose connections; the requests that they repeat are executed once.
//
//   IVY_SIM_SEED=17 bin/ivy_store_test --gtest_filter='SimulationTest.*'      one seed again
//   IVY_SIM_SEEDS=1000000 bin/ivy_store_test --gtest_filter='SimulationTest.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <queue>
#include <random>

#include "tests/rendezvous/simulated_client.h"

namespace ivy::store {
namespace {

using test::History;
using test::Network;
using test::SimulatedClient;

constexpr std::uint64_t kMilli = 1'000'000;

class Life : public Network {
 public:
  explicit Life(std::uint64_t seed) : random_(seed) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  std::string run() {
    const std::size_t clients = 3 + pick(4);
    for (std::size_t i = 0; i < clients; ++i) connect();
    const std::size_t steps = 150 + pick(150);
    for (std::size_t i = 0; i < steps && trouble_.empty(); ++i) step();
    settle();
    check_waiters();
    check_histories();
    check_counters();
    return trouble_;
  }

  // ---- Network ----
  std::uint64_t pick(std::uint64_t below) override { return random_() % below; }
  std::uint64_t now() const override { return now_ns_; }
  void later(std::uint64_t earliest_ns, std::function<void()> what) override {
    events_.emplace(std::make_pair(std::max(earliest_ns, now_ns_), next_event_++), std::move(what));
  }
  void deliver(Replies& replies) override {
    for (Reply& reply : replies) {
      const auto client = by_id_.find(reply.client);
      if (client != by_id_.end()) client->second->take(reply);
    }
    replies.clear();
    for (const auto& client : clients_) client->continue_turn();
  }
  void joined(ClientId id, SimulatedClient& client) override { by_id_[id] = &client; }
  void left(ClientId id) override { by_id_.erase(id); }
  void fail(const std::string& what) override {
    if (trouble_.empty()) trouble_ = what;
  }
  Engine& engine() override { return engine_; }

  History& history() override { return history_; }

 private:
  void connect() {
    const auto kind = static_cast<SimulatedClient::Protocol>(pick(3));
    clients_.push_back(std::make_unique<SimulatedClient>(*this, kind, next_rank_++ % 3));
  }

  void step() {
    const std::uint64_t what = pick(100);
    if (clients_.empty() || what < 2) {
      connect();
    } else if (what < 60) {
      clients_[pick(clients_.size())]->send_request();
    } else if (what < 64) {
      clients_[pick(clients_.size())]->cancel();
    } else if (what < 66) {
      hang_up(pick(clients_.size()));
    } else if (what < 67 && pick(4) == 0) {
      begin_generation();
    } else if (what < 70) {
      SimulatedClient& client = *clients_[pick(clients_.size())];
      if (client.may_dial_again()) client.lose_connection(pick(20) * kMilli);
    } else {
      pass(pick(20) * kMilli / 4);
    }
  }

  void hang_up(std::size_t index) {
    clients_[index]->hang_up();
    past_.push_back(std::move(clients_[index]));
    clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // The server closes clients of the previous generation soon, but not immediately. Requests that
  // they send in between must have no effect.
  void begin_generation() {
    Replies replies;
    engine_.begin_generation(engine_.generation() + 1, replies);
    deliver(replies);
    if (engine_.key_count() != 0 || engine_.bytes() != 0) fail("a generation started with keys");
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if (pick(2) == 0) clients_[i]->send_request();
    }
    pass(pick(3) * kMilli);
    const std::size_t count = clients_.size();
    for (std::size_t i = count; i-- > 0;) hang_up(i);
    for (std::size_t i = 0; i < count; ++i) connect();
  }

  void pass(std::uint64_t ns) {
    const std::uint64_t until = now_ns_ + ns;
    while (!events_.empty() && events_.begin()->first.first <= until) {
      now_ns_ = events_.begin()->first.first;
      const std::function<void()> event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
      advance();
    }
    now_ns_ = until;
    advance();
  }
  void advance() {
    Replies replies;
    const std::uint64_t next = engine_.advance(now_ns_, replies);
    if (next <= now_ns_) fail("an expired request was not answered");
    deliver(replies);
  }
  void settle() {
    while (!events_.empty() && trouble_.empty()) pass(kMilli);
  }

  // Every open request must lack something; a separate client checks that.
  void check_waiters() {
    for (const Waiting& waiting : engine_.wait_graph().waiting) {
      if (waiting.missing_count == 0 && waiting.absent.empty())
        fail("forgotten: a wait for " + waiting.what + " that lacks nothing");
      for (const std::string& key : waiting.missing) {
        const bool exists = waiting.what == "key" && has(waiting.client.space, key);
        if (exists) fail("forgotten: a wait for '" + key + "', which exists");
      }
    }
  }
  bool has(Space space, const std::string& key) {
    Replies replies;
    ClientInfo info;
    info.space = space;
    info.generation = engine_.generation();
    const ClientId probe = *engine_.join(info, now_ns_);
    engine_.apply(probe, 1, Get{key, std::nullopt}, now_ns_, replies);
    engine_.leave(probe);
    return std::holds_alternative<Value>(replies.at(0).body);
  }

  void check_histories() {
    for (const auto& [where, operations] : history_.objects) {
      std::vector<test::Operation> all(operations.begin(), operations.end());
      if (!test::is_linearizable(all))
        fail("object " + where + " is not linearizable:\n" + test::describe(all));
    }
    for (const auto& client : clients_) client->hang_up();
    const std::string wrong = history_.wrong_round();
    if (!wrong.empty()) fail(wrong);
  }

  void check_counters() {
    if (engine_.open_requests() != 0) fail("waiters of disconnected clients remain");
    if (engine_.waiting_bytes() != 0) fail("bytes of removed waiters remain");
    if (!engine_.wait_graph().clients.empty()) fail("disconnected clients remain");
    Replies replies;
    ClientInfo info;
    info.generation = engine_.generation();
    for (const Space space : {Space::kNative, Space::kTorch}) {
      info.space = space;
      const ClientId cleaner = *engine_.join(info, now_ns_);
      for (const std::string& key : SimulatedClient::all_keys()) {
        engine_.apply(cleaner, 1, Delete{key}, now_ns_, replies);
        do {
          replies.clear();
          engine_.apply(cleaner, 1, QueuePop{key, std::nullopt}, now_ns_, replies);
        } while (std::holds_alternative<Value>(replies.at(0).body));
      }
      engine_.leave(cleaner);
    }
    // One barrier may remain until its generation ends.
    if (engine_.key_count() > 1) fail("keys remain: " + std::to_string(engine_.key_count()));
    if (engine_.key_count() == 0 && engine_.bytes() != 0)
      fail("bytes remain: " + std::to_string(engine_.bytes()));
    engine_.begin_generation(engine_.generation() + 1, replies);
    if (engine_.key_count() != 0 || engine_.bytes() != 0) fail("a barrier remains");
  }

  std::mt19937_64 random_;
  Engine engine_;
  History history_;
  std::uint64_t now_ns_ = 1;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t next_event_ = 0;
  std::vector<std::unique_ptr<SimulatedClient>> clients_;
  std::vector<std::unique_ptr<SimulatedClient>> past_;  // Events may still refer to them.
  std::map<ClientId, SimulatedClient*> by_id_;
  std::uint32_t next_rank_ = 0;
  std::string trouble_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SimulationTest, StaysConsistentForEverySeed) {
  const std::uint64_t only = from_environment("IVY_SIM_SEED", 0);
  const std::uint64_t first = only == 0 ? 1 : only;
  const std::uint64_t last = only == 0 ? from_environment("IVY_SIM_SEEDS", 1000) : only;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const std::string trouble = Life(seed).run();
    ASSERT_TRUE(trouble.empty()) << "replay: IVY_SIM_SEED=" << seed
                                 << " bin/ivy_store_test --gtest_filter='SimulationTest.*'\n"
                                 << trouble;
  }
}

}  // namespace
}  // namespace ivy::store
