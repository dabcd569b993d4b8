// The engine's state, for its sources only: engine.cc (clients, time, generations), engine_keys.cc
// (values), engine_meetings.cc (queues, barriers, watches) and engine_journal.cc (persistence).
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rendezvous/engine/answered_requests.h"
#include "rendezvous/engine/effect.h"
#include "rendezvous/engine/wait_graph.h"
#include "rendezvous/engine/waiters.h"

namespace ivy::store {

// The memory that one key takes besides its bytes: a node of the map and two strings.
inline constexpr std::size_t kKeyOverheadBytes = 128;
// The memory that a barrier keeps per member from round to round.
inline constexpr std::size_t kMemberBytes = 64;

Error too_long(const char* what, std::size_t bytes, std::size_t limit);
Result<void> check_key(const std::string& key);
Result<void> check_key_count(std::size_t count);
Result<void> check_keys(const std::vector<std::string>& keys);
std::size_t barrier_cost(std::string_view name, std::uint32_t size);
Result<void> check_entry(const std::string& key, const std::string& value);
std::optional<std::int64_t> number_of(std::string_view text);

struct EngineState {
  struct Client {
    ClientInfo info;
    std::uint64_t last_ns = 0;
    const char* last_op = "";
    std::string last_key;
    std::size_t watches = 0;
  };
  struct BarrierRound {
    std::uint32_t size = 0;
    std::uint64_t round = 1;
    std::map<std::uint32_t, std::set<WaiterId>> arrived;
    std::map<std::uint32_t, std::uint64_t> last_calls;  // Calls of the round before, by member.
    std::size_t cost_bytes = 0;
    // Both are for barriers that end with a loss, and are not in the log.
    bool ends_with_a_loss = false;
    std::optional<std::uint32_t> lost_member;
  };
  struct WatchEntry {
    ClientId client = 0;
    RequestId request = 0;
    std::string prefix;
    bool one_shot = false;
  };
  using Queues = std::map<std::string, std::deque<std::string>, std::less<>>;  // None empty.
  struct Entry {
    std::string value;
    bool is_set_once = false;  // See lasting_value().
  };
  struct Contents {
    std::map<std::string, Entry, std::less<>> values;
    Queues queues;
    std::map<std::string, BarrierRound, std::less<>> barriers;
    std::vector<WatchEntry> watches;
    std::unordered_multimap<std::string, WatchEntry> exact_watches;  // By key.
  };

  explicit EngineState(EngineLimits wanted) : limits(wanted) {}

  void serve(Set&& request);
  void serve(Get&& request);
  void serve(Wait&& request);
  void serve(Check&& request);
  void serve(Add&& request);
  void serve(CompareSet&& request);
  void serve(Append&& request);
  void serve(Delete&& request);
  void serve(MultiGet&& request);
  void serve(MultiSet&& request);
  void serve(QueuePush&& request);
  void serve(QueuePop&& request);
  void serve(QueueLength&& request);
  void serve(List&& request);
  void serve(Count&& request);
  void serve(Barrier&& request);
  void serve(AddAndWait&& request);
  void serve(Watch&& request);
  void serve(Cancel&& request);
  void serve(Why&& request);

  void serve_request(Request&& request);
  void serve_numbered(SessionId session, const Numbered& numbered, Request&& request);

  template <class Body>
  void answer_to(ClientId whom, RequestId what, Body body) {
    Reply& reply = out->emplace_back();
    reply.client = whom;
    reply.request = what;
    reply.body = std::move(body);
  }
  template <class Body>
  void answer(Body body) {
    answer_to(client, id, std::move(body));
  }
  template <class Body>
  void answer(const Waiter& waiter, Body body) {
    answer_to(waiter.client, waiter.request, std::move(body));
  }
  Contents& contents() { return spaces[static_cast<std::size_t>(space)]; }
  bool exists(Space in, const std::string& key) const {
    const Contents& there = spaces[static_cast<std::size_t>(in)];
    return there.values.contains(key) || there.queues.contains(key);
  }
  auto exists_here() const {
    return [this](const std::string& key) { return exists(space, key); };
  }
  Result<void> room_for(std::size_t more_keys, std::size_t more_bytes) const;
  Result<void> room_to_wait(const std::vector<std::string>& wanted) const;
  Result<void> put(const std::string& key, std::string value, bool is_set_once = false);
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  Result<void> room_to_take(Queues::iterator queue) const;
  std::string take_front(Queues::iterator queue);
  Result<BarrierRound*> barrier_for(const Barrier& request);
  void tell_waiters(const std::string& key);
  void tell_queue(const std::string& key);
  void settle(WaiterId waiter, const std::string& key);
  void tell_watches(const std::string& key, Changed::What what, const std::string& value);
  void tell_exact_watches(const std::string& key, Changed::What what, const std::string& value,
                          bool only_one_shot);
  void cancel(RequestId request);
  void begin_wait(Waiter waiter);
  void forget_wait(WaiterId waiter);
  void complete(const std::string& name, BarrierRound& barrier);
  void note_loss(const Waiter& waiter);
  void answer_ended_barriers();
  Waiter waiter_here(WaitKind kind, std::vector<std::string> keys, std::uint64_t deadline_ns) const;
  Waiting describe(WaiterId waiter);
  Picture picture(ClientId asker);
  bool may_explain(std::uint64_t at_ns);
  void end_watches(ClientId of, std::optional<RequestId> only);

  Result<void> room_in_log(std::size_t more_bytes, Journal::Use use = Journal::Use::kMore) const;
  void note(const Effect& effect);
  void note_barrier(const std::string& name, const BarrierRound& barrier);
  void end_record();
  Result<void> redo(const Effect& effect);
  Result<void> redo_value(const Effect& effect, Contents& there);
  Result<void> redo_queue(const Effect& effect, Contents& there);
  void redo_barrier(const Effect& effect, Contents& there);

  const EngineLimits limits;
  std::uint32_t generation = 0;
  std::array<Contents, 3> spaces;
  Waiters waiters;
  AnsweredRequests answered;
  std::unordered_map<ClientId, Client> clients;
  ClientId next_client = 1;
  std::vector<std::pair<Space, std::string>> ended_barriers;  // Their waiters must be told.
  std::size_t bytes = 0;
  std::size_t keys = 0;
  std::uint64_t changes = 0;
  Journal* journal = nullptr;
  std::string effects;  // Effects of the current request.
  std::uint64_t requests = 0;
  std::uint64_t explained_since_ns = 0;  // Start of the window for...
  std::size_t explained = 0;             // ...the count of explained timeouts.

  // Context of the request that is being served.
  ClientId client = 0;
  RequestId id = 0;
  Space space = Space::kNative;
  std::uint64_t now_ns = 0;
  Replies* out = nullptr;
};

}  // namespace ivy::store
