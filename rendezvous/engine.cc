#include "rendezvous/engine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "rendezvous/waiters.h"

namespace ivy::store {
namespace {

// What one key costs beside its bytes: a node of the map and two strings.
constexpr std::size_t kKeyOverheadBytes = 128;
constexpr std::size_t kNamedInPicture = 16;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

Error too_long(const char* what, std::size_t bytes, std::size_t limit) {
  return Error{Code::kInvalidArgument, std::string(what) + " of " + std::to_string(bytes) +
                                           " bytes is longer than " + std::to_string(limit)};
}

Result<void> check_key(const std::string& key) {
  if (key.size() > kMaxKeyBytes) return too_long("a key", key.size(), kMaxKeyBytes);
  return {};
}

Result<void> check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxKeysPerRequest) {
    return Error{Code::kInvalidArgument, "a request with " + std::to_string(keys.size()) +
                                             " keys; at most " +
                                             std::to_string(kMaxKeysPerRequest)};
  }
  for (const std::string& key : keys) IVY_CHECK(check_key(key));
  return {};
}

Result<void> check_entry(const std::string& key, const std::string& value) {
  IVY_CHECK(check_key(key));
  if (value.size() > kMaxValueBytes) return too_long("a value", value.size(), kMaxValueBytes);
  return {};
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string seconds(std::uint64_t ns) {
  const std::uint64_t tenths = ns / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string list_of(const std::vector<std::string>& names, std::size_t count) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  if (count > names.size()) text += " and " + std::to_string(count - names.size()) + " more";
  return text;
}

// "set" and so on, for Seen and Waiting.
const char* name_of(const Request& request) {
  constexpr std::array<const char*, std::variant_size_v<Request>> kNames = {
      "set",    "get",       "wait",         "check",      "add",       "compare_set", "append",
      "delete", "multi_get", "multi_set",    "queue_push", "queue_pop", "queue_len",   "list",
      "count",  "barrier",   "add_and_wait", "watch",      "cancel"};
  return kNames[request.index()];
}

const std::string& first_key_of(const Request& request) {
  static const std::string none;
  return std::visit(
      Overloaded{[](const Wait& wait) -> const std::string& {
                   return wait.keys.empty() ? none : wait.keys.front();
                 },
                 [](const Check& check) -> const std::string& {
                   return check.keys.empty() ? none : check.keys.front();
                 },
                 [](const MultiGet& get) -> const std::string& {
                   return get.keys.empty() ? none : get.keys.front();
                 },
                 [](const MultiSet& set) -> const std::string& {
                   return set.entries.empty() ? none : set.entries.front().first;
                 },
                 [](const List& list) -> const std::string& { return list.prefix; },
                 [](const Count& count) -> const std::string& { return count.prefix; },
                 [](const Watch& watch) -> const std::string& { return watch.prefix; },
                 [](const Barrier& barrier) -> const std::string& { return barrier.name; },
                 [](const Cancel&) -> const std::string& { return none; },
                 [](const auto& keyed) -> const std::string& { return keyed.key; }},
      request);
}

}  // namespace

// ---- State --------------------------------------------------------------------------------------

struct Engine::State {
  struct Client {
    ClientInfo info;
    std::uint64_t last_ns = 0;
    const char* last_op = "";
    std::string last_key;
  };
  struct BarrierRound {
    std::uint32_t size = 0;
    std::uint64_t round = 1;
    std::map<std::uint32_t, std::set<WaiterId>> arrived;
    std::map<std::uint32_t, std::uint64_t> last_calls;  // Of the round before, by member.
  };
  struct WatchEntry {
    ClientId client = 0;
    RequestId request = 0;
    std::string prefix;
  };
  struct Contents {
    std::map<std::string, std::string, std::less<>> values;
    std::map<std::string, std::deque<std::string>, std::less<>> queues;  // Never an empty one.
    std::map<std::string, BarrierRound, std::less<>> barriers;
    std::vector<WatchEntry> watches;
  };

  explicit State(EngineLimits wanted) : limits(wanted) {}

  // ---- the one place where a request of each kind is served ----
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

  // ---- small parts ----
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
  Result<void> put(const std::string& key, std::string value);
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  void tell_waiters(const std::string& key);
  void tell_queue(const std::string& key);
  void settle(WaiterId waiter, const std::string& key);
  void tell_watches(const std::string& key, Changed::What what, const std::string& value);
  void begin_wait(Waiter waiter);
  void forget_wait(WaiterId waiter);
  void complete(BarrierRound& barrier);
  Waiter waiter_here(WaitKind kind, std::vector<std::string> keys, std::uint64_t deadline_ns) const;
  Waiting describe(WaiterId waiter);
  void end_watches(ClientId of, std::optional<RequestId> only);

  const EngineLimits limits;
  std::uint32_t generation = 0;
  std::array<Contents, 3> spaces;
  Waiters waiters;
  std::unordered_map<ClientId, Client> clients;
  ClientId next_client = 1;
  std::size_t bytes = 0;
  std::size_t keys = 0;

  // Of the request that is being served.
  ClientId client = 0;
  RequestId id = 0;
  Space space = Space::kNative;
  std::uint64_t now_ns = 0;
  Replies* out = nullptr;
};

Result<void> Engine::State::room_for(std::size_t more_keys, std::size_t more_bytes) const {
  if (keys + more_keys > limits.keys) {
    return Error{Code::kResourceExhausted,
                 "the store is full: it holds " + std::to_string(keys) + " keys, its limit"};
  }
  if (bytes + more_bytes > limits.store_bytes) {
    return Error{Code::kResourceExhausted, "the store is full: " + std::to_string(bytes) +
                                               " of its " + std::to_string(limits.store_bytes) +
                                               " bytes are used"};
  }
  return {};
}

// Stores, without telling anybody.
Result<void> Engine::State::put(const std::string& key, std::string value) {
  IVY_CHECK(check_entry(key, value));
  auto& values = contents().values;
  const auto found = values.find(key);
  if (found == values.end()) {
    const std::size_t cost = key.size() + value.size() + kKeyOverheadBytes;
    IVY_CHECK(room_for(1, cost));
    bytes += cost;
    keys += 1;
    values.emplace(key, std::move(value));
    return {};
  }
  if (value.size() > found->second.size())
    IVY_CHECK(room_for(0, value.size() - found->second.size()));
  bytes = bytes - found->second.size() + value.size();
  found->second = std::move(value);
  return {};
}

Result<std::int64_t> Engine::State::add(const std::string& key, std::int64_t delta) {
  std::int64_t number = 0;
  const auto& values = contents().values;
  const auto found = values.find(key);
  if (found != values.end()) {
    const std::optional<std::int64_t> present = number_of(found->second);
    if (!present) {
      return Error{Code::kInvalidArgument, "add to key '" + key + "': its value is not a number"};
    }
    number = *present;
  }
  if (__builtin_add_overflow(number, delta, &number)) {
    return Error{Code::kInvalidArgument, "add to key '" + key + "': the sum has more than 64 bits"};
  }
  IVY_CHECK(put(key, std::to_string(number)));
  return number;
}

void Engine::State::tell_waiters(const std::string& key) {
  for (const WaiterId waiter : waiters.missing(space, key)) settle(waiter, key);
  const auto& values = contents().values;
  const auto found = values.find(key);
  if (found != values.end()) tell_watches(key, Changed::What::kSet, found->second);
}

// A key that this one misses was written.
void Engine::State::settle(WaiterId id_of_waiter, const std::string& key) {
  Waiter& waiter = *waiters.find(id_of_waiter);
  const auto& values = contents().values;
  const auto found = values.find(key);
  switch (waiter.kind) {
    case WaitKind::kItem:
    case WaitKind::kBarrier:
      return;
    case WaitKind::kValue:
      if (found == values.end()) return;
      answer(waiter, Value{found->second});
      break;
    case WaitKind::kNumber:
      if (found == values.end() || number_of(found->second).value_or(0) < waiter.at_least) return;
      answer(waiter, Done{});
      break;
    case WaitKind::kKeys:
      if (!waiters.found(id_of_waiter, key)) return;
      // What had come before may have been deleted since.
      if (!waiters.look_again(id_of_waiter, exists_here())) return;
      answer(waiter, Done{});
      break;
  }
  waiters.remove(id_of_waiter);
}

void Engine::State::tell_watches(const std::string& key, Changed::What what,
                                 const std::string& value) {
  for (const WatchEntry& watch : contents().watches) {
    if (!std::string_view(key).starts_with(watch.prefix)) continue;
    answer_to(watch.client, watch.request, Changed{what, key, value});
  }
}

Waiter Engine::State::waiter_here(WaitKind kind, std::vector<std::string> wanted,
                                  std::uint64_t deadline_ns) const {
  Waiter waiter;
  waiter.client = client;
  waiter.request = id;
  waiter.space = space;
  waiter.kind = kind;
  waiter.keys = std::move(wanted);
  waiter.deadline_ns = deadline_ns;
  waiter.since_ns = now_ns;
  return waiter;
}

void Engine::State::begin_wait(Waiter waiter) {
  if (waiters.find(client, id) != 0) {
    return answer(Error{Code::kInvalidArgument, "a request of this number waits already"});
  }
  if (waiters.count(client) >= limits.waits_per_client) {
    return answer(Error{Code::kResourceExhausted, "this client has " +
                                                      std::to_string(limits.waits_per_client) +
                                                      " requests that wait, its limit"});
  }
  const bool by_existence = waiter.kind == WaitKind::kKeys;
  if (by_existence) {
    waiters.add(std::move(waiter), exists_here());
  } else {
    waiters.add(std::move(waiter), [](const std::string&) { return false; });
  }
}

// ---- Requests -----------------------------------------------------------------------------------

void Engine::State::serve(Set&& request) {
  if (request.once) {
    const auto found = contents().values.find(request.key);
    if (found != contents().values.end()) {
      if (found->second == request.value) return answer(Done{});
      return answer(Error{Code::kAlreadyExists,
                          "key '" + request.key + "' was set before, to another value"});
    }
  }
  const Result<void> stored = put(request.key, std::move(request.value));
  if (!stored.ok()) return answer(stored.error());
  answer(Done{});
  tell_waiters(request.key);
}

void Engine::State::serve(Get&& request) {
  const auto found = contents().values.find(request.key);
  if (found != contents().values.end()) return answer(Value{found->second});
  if (!request.wait_until_ns) return answer(Error{Code::kNotFound, "no key '" + request.key + "'"});
  const Result<void> sane = check_key(request.key);
  if (!sane.ok()) return answer(sane.error());
  begin_wait(waiter_here(WaitKind::kValue, {std::move(request.key)}, *request.wait_until_ns));
}

void Engine::State::serve(Wait&& request) {
  const Result<void> sane = check_keys(request.keys);
  if (!sane.ok()) return answer(sane.error());
  if (std::all_of(request.keys.begin(), request.keys.end(), exists_here())) return answer(Done{});
  begin_wait(waiter_here(WaitKind::kKeys, std::move(request.keys), request.deadline_ns));
}

void Engine::State::serve(Check&& request) {
  const bool all = std::all_of(request.keys.begin(), request.keys.end(), exists_here());
  answer(Number{all ? 1 : 0});
}

void Engine::State::serve(Add&& request) {
  const Result<std::int64_t> sum = add(request.key, request.delta);
  if (!sum.ok()) return answer(sum.error());
  answer(Number{*sum});
  tell_waiters(request.key);
}

void Engine::State::serve(CompareSet&& request) {
  const auto found = contents().values.find(request.key);
  const bool present = found != contents().values.end();
  const bool equal = request.expected ? present && found->second == *request.expected : !present;
  if (!equal) {
    return answer(Compared{false, present ? std::optional(found->second) : std::nullopt});
  }
  const Result<void> stored = put(request.key, request.desired);
  if (!stored.ok()) return answer(stored.error());
  answer(Compared{true, std::move(request.desired)});
  tell_waiters(request.key);
}

void Engine::State::serve(Append&& request) {
  auto& values = contents().values;
  const auto found = values.find(request.key);
  std::size_t length = request.value.size();
  if (found == values.end()) {
    const Result<void> stored = put(request.key, std::move(request.value));
    if (!stored.ok()) return answer(stored.error());
  } else {
    length += found->second.size();
    if (length > kMaxValueBytes) return answer(too_long("a value", length, kMaxValueBytes));
    const Result<void> room = room_for(0, request.value.size());
    if (!room.ok()) return answer(room.error());
    bytes += request.value.size();
    found->second += request.value;
  }
  answer(Number{static_cast<std::int64_t>(length)});
  tell_waiters(request.key);
}

void Engine::State::serve(Delete&& request) {
  auto& values = contents().values;
  const auto found = values.find(request.key);
  if (found == values.end()) return answer(Number{0});
  bytes -= found->first.size() + found->second.size() + kKeyOverheadBytes;
  keys -= 1;
  values.erase(found);
  answer(Number{1});
  tell_watches(request.key, Changed::What::kDeleted, {});
}

void Engine::State::serve(MultiGet&& request) {
  const Result<void> sane = check_keys(request.keys);
  if (!sane.ok()) return answer(sane.error());
  Values values;
  values.bytes.reserve(request.keys.size());
  for (const std::string& key : request.keys) {
    const auto found = contents().values.find(key);
    if (found == contents().values.end())
      return answer(Error{Code::kNotFound, "no key '" + key + "'"});
    values.bytes.push_back(found->second);
  }
  answer(std::move(values));
}

void Engine::State::serve(MultiSet&& request) {
  // Everything is checked before anything is stored. A key may be named twice: the last one stays,
  // and the room is reckoned as if all were new, which can only refuse too early.
  std::size_t more_bytes = 0;
  std::size_t more_keys = 0;
  for (const auto& [key, value] : request.entries) {
    const Result<void> sane = check_entry(key, value);
    if (!sane.ok()) return answer(sane.error());
    const auto found = contents().values.find(key);
    if (found == contents().values.end()) {
      more_keys += 1;
      more_bytes += key.size() + kKeyOverheadBytes + value.size();
    } else if (value.size() > found->second.size()) {
      more_bytes += value.size() - found->second.size();
    }
  }
  const Result<void> room = room_for(more_keys, more_bytes);
  if (!room.ok()) return answer(room.error());
  for (auto& [key, value] : request.entries) IVY_ASSERT(put(key, value).ok());
  answer(Done{});
  for (const auto& [key, value] : request.entries) tell_waiters(key);
}

void Engine::State::serve(QueuePush&& request) {
  const Result<void> sane = check_entry(request.key, request.value);
  if (!sane.ok()) return answer(sane.error());
  const std::size_t cost = request.value.size() + kKeyOverheadBytes;
  const Result<void> room = room_for(1, cost);
  if (!room.ok()) return answer(room.error());
  bytes += cost;
  keys += 1;
  std::deque<std::string>& queue = contents().queues[request.key];
  queue.push_back(std::move(request.value));
  answer(Number{static_cast<std::int64_t>(queue.size())});
  tell_queue(request.key);
}

// First those who take, longest first; if something is left then, those who wait for the queue to
// exist.
void Engine::State::tell_queue(const std::string& key) {
  auto& queues = contents().queues;
  const std::vector<WaiterId> interested = waiters.missing(space, key);
  for (const WaiterId waiter : interested) {
    if (waiters.find(waiter)->kind != WaitKind::kItem) continue;
    const auto queue = queues.find(key);
    if (queue == queues.end()) break;
    bytes -= queue->second.front().size() + kKeyOverheadBytes;
    keys -= 1;
    answer(*waiters.find(waiter), Value{std::move(queue->second.front())});
    queue->second.pop_front();
    if (queue->second.empty()) queues.erase(queue);
    waiters.remove(waiter);
  }
  if (!queues.contains(key)) return;
  for (const WaiterId waiter : waiters.missing(space, key)) settle(waiter, key);
}

void Engine::State::serve(QueuePop&& request) {
  auto& queues = contents().queues;
  const auto queue = queues.find(request.key);
  if (queue == queues.end()) {
    if (!request.wait_until_ns) {
      return answer(Error{Code::kNotFound, "queue '" + request.key + "' is empty"});
    }
    const Result<void> sane = check_key(request.key);
    if (!sane.ok()) return answer(sane.error());
    return begin_wait(
        waiter_here(WaitKind::kItem, {std::move(request.key)}, *request.wait_until_ns));
  }
  bytes -= queue->second.front().size() + kKeyOverheadBytes;
  keys -= 1;
  answer(Value{std::move(queue->second.front())});
  queue->second.pop_front();
  if (queue->second.empty()) queues.erase(queue);
}

void Engine::State::serve(QueueLength&& request) {
  const auto queue = contents().queues.find(request.key);
  const std::size_t length = queue == contents().queues.end() ? 0 : queue->second.size();
  answer(Number{static_cast<std::int64_t>(length)});
}

void Engine::State::serve(List&& request) {
  Keys list;
  const auto& values = contents().values;
  const std::string& from = std::max(request.prefix, request.after);
  for (auto at = values.lower_bound(from); at != values.end(); ++at) {
    if (!std::string_view(at->first).starts_with(request.prefix)) break;
    if (!request.after.empty() && at->first <= request.after) continue;
    if (request.limit != 0 && list.keys.size() == request.limit) {
      list.more = true;
      break;
    }
    list.keys.push_back(at->first);
  }
  answer(std::move(list));
}

void Engine::State::serve(Count&& request) {
  const auto& values = contents().values;
  if (request.prefix.empty()) return answer(Number{static_cast<std::int64_t>(values.size())});
  std::int64_t count = 0;
  for (auto at = values.lower_bound(request.prefix);
       at != values.end() && std::string_view(at->first).starts_with(request.prefix); ++at) {
    ++count;
  }
  answer(Number{count});
}

void Engine::State::serve(Barrier&& request) {
  if (request.size == 0 || request.member >= request.size) {
    return answer(Error{Code::kInvalidArgument,
                        "barrier '" + request.name + "': member " + std::to_string(request.member) +
                            " of " + std::to_string(request.size) + "; members are 0 to size - 1"});
  }
  const Result<void> sane = check_key(request.name);
  if (!sane.ok()) return answer(sane.error());
  auto& barriers = contents().barriers;
  auto found = barriers.find(request.name);
  if (found == barriers.end()) {
    const std::size_t cost = request.name.size() + kKeyOverheadBytes;
    const Result<void> room = room_for(1, cost);
    if (!room.ok()) return answer(room.error());
    bytes += cost;
    keys += 1;
    found = barriers.emplace(request.name, BarrierRound{}).first;
    found->second.size = request.size;
  }
  BarrierRound& barrier = found->second;
  if (barrier.size != request.size) {
    return answer(Error{Code::kInvalidArgument,
                        "barrier '" + request.name + "': this member says that it is for " +
                            std::to_string(request.size) + ", others said " +
                            std::to_string(barrier.size)});
  }
  // A member whose answer was lost asks again: it must not count for the next round.
  const auto last = barrier.last_calls.find(request.member);
  if (request.call != 0 && last != barrier.last_calls.end() && last->second == request.call) {
    return answer(Number{static_cast<std::int64_t>(barrier.round - 1)});
  }
  if (waiters.count(client) >= limits.waits_per_client || waiters.find(client, id) != 0) {
    return answer(Error{Code::kResourceExhausted,
                        "this client waits for too much at once, or twice under one number"});
  }
  Waiter waiter = waiter_here(WaitKind::kBarrier, {request.name}, request.deadline_ns);
  waiter.member = request.member;
  waiter.at_least = static_cast<std::int64_t>(request.call);
  const WaiterId here = waiters.add(std::move(waiter), [](const std::string&) { return false; });
  barrier.arrived[request.member].insert(here);
  if (barrier.arrived.size() == barrier.size) complete(barrier);
}

void Engine::State::complete(BarrierRound& barrier) {
  barrier.last_calls.clear();
  for (const auto& [member, ids] : barrier.arrived) {
    for (const WaiterId waiting : ids) {
      const Waiter& waiter = *waiters.find(waiting);
      barrier.last_calls[member] = static_cast<std::uint64_t>(waiter.at_least);
      answer(waiter, Number{static_cast<std::int64_t>(barrier.round)});
      waiters.remove(waiting);
    }
  }
  barrier.arrived.clear();
  barrier.round += 1;
}

void Engine::State::serve(AddAndWait&& request) {
  const Result<std::int64_t> sum = add(request.key, 1);
  if (!sum.ok()) return answer(sum.error());
  if (*sum >= request.at_least) {
    answer(Done{});
  } else {
    Waiter waiter = waiter_here(WaitKind::kNumber, {request.key}, kNever);
    waiter.at_least = request.at_least;
    begin_wait(std::move(waiter));
  }
  tell_waiters(request.key);
}

void Engine::State::serve(Watch&& request) {
  const Result<void> sane = check_key(request.prefix);
  if (!sane.ok()) return answer(sane.error());
  contents().watches.push_back({client, id, std::move(request.prefix)});
  answer(Done{});
}

void Engine::State::serve(Cancel&& request) {
  const WaiterId waiting = waiters.find(client, request.request);
  if (waiting != 0) {
    answer(*waiters.find(waiting), Error{Code::kCancelled, "cancelled by its client"});
    forget_wait(waiting);
  }
  end_watches(client, request.request);
  answer(Done{});
}

// ---- Ends ---------------------------------------------------------------------------------------

void Engine::State::end_watches(ClientId of, std::optional<RequestId> only) {
  for (Contents& there : spaces) {
    std::erase_if(there.watches, [&](const WatchEntry& watch) {
      return watch.client == of && (!only || watch.request == *only);
    });
  }
}

// A member of a barrier that goes away has not arrived.
void Engine::State::forget_wait(WaiterId waiting) {
  const Waiter& waiter = *waiters.find(waiting);
  if (waiter.kind == WaitKind::kBarrier) {
    auto& barriers = spaces[static_cast<std::size_t>(waiter.space)].barriers;
    const auto barrier = barriers.find(waiter.keys.front());
    if (barrier != barriers.end()) {
      const auto member = barrier->second.arrived.find(waiter.member);
      if (member != barrier->second.arrived.end()) {
        member->second.erase(waiting);
        if (member->second.empty()) barrier->second.arrived.erase(member);
      }
    }
  }
  waiters.remove(waiting);
}

Waiting Engine::State::describe(WaiterId waiting) {
  const Waiter& waiter = *waiters.find(waiting);
  Waiting picture;
  const auto of = clients.find(waiter.client);
  if (of != clients.end()) picture.client = of->second.info;
  picture.since_ns = waiter.since_ns;
  if (waiter.kind == WaitKind::kBarrier) {
    const auto& barriers = spaces[static_cast<std::size_t>(waiter.space)].barriers;
    const BarrierRound& barrier = barriers.find(waiter.keys.front())->second;
    picture.what = "barrier '" + waiter.keys.front() + "' of " + std::to_string(barrier.size);
    picture.missing_count = barrier.size - barrier.arrived.size();
    for (std::uint32_t member = 0; member < barrier.size && picture.absent.size() < kNamedInPicture;
         ++member) {
      if (!barrier.arrived.contains(member)) picture.absent.push_back(member);
    }
    return picture;
  }
  picture.what = waiter.kind == WaitKind::kItem     ? "queue"
                 : waiter.kind == WaitKind::kNumber ? "counter"
                                                    : "key";
  picture.missing_count = waiter.missing.size();
  for (const std::string& key : waiter.keys) {
    if (picture.missing.size() == kNamedInPicture) break;
    if (waiter.missing.contains(key)) picture.missing.push_back(key);
  }
  return picture;
}

// ---- Engine -------------------------------------------------------------------------------------

Engine::Engine(EngineLimits limits) : state_(std::make_unique<State>(limits)) {}
Engine::~Engine() = default;

Result<ClientId> Engine::join(ClientInfo info, std::uint64_t now_ns) {
  if (info.generation != state_->generation) {
    return Error{Code::kFailedPrecondition, "generation " + std::to_string(info.generation) +
                                                " is not served: the store is at " +
                                                std::to_string(state_->generation)};
  }
  const ClientId id = state_->next_client++;
  state_->clients[id] = {std::move(info), now_ns, "connected", {}};
  return id;
}

void Engine::leave(ClientId client) {
  for (const WaiterId waiting : state_->waiters.of_client(client)) state_->forget_wait(waiting);
  state_->end_watches(client, std::nullopt);
  state_->clients.erase(client);
}

void Engine::describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) {
  const auto found = state_->clients.find(client);
  if (found == state_->clients.end()) return;
  if (pid != 0) found->second.info.pid = pid;
  if (rank) found->second.info.rank = rank;
}

void Engine::apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
                   Replies& out) {
  const auto found = state_->clients.find(client);
  IVY_ASSERT(found != state_->clients.end());
  State::Client& record = found->second;
  record.last_ns = now_ns;
  record.last_op = name_of(body);
  record.last_key = first_key_of(body);
  if (record.info.generation != state_->generation) {
    out.push_back({client, request,
                   Error{Code::kFailedPrecondition,
                         "generation " + std::to_string(record.info.generation) +
                             " has ended: the store is at " + std::to_string(state_->generation)}});
    return;
  }
  state_->client = client;
  state_->id = request;
  state_->space = record.info.space;
  state_->now_ns = now_ns;
  state_->out = &out;
  std::visit([this](auto&& kind) { state_->serve(std::forward<decltype(kind)>(kind)); },
             std::move(body));
}

std::uint64_t Engine::advance(std::uint64_t now_ns, Replies& out) {
  while (const WaiterId due = state_->waiters.due(now_ns)) {
    const Waiting picture = state_->describe(due);
    std::string text = "waited " + seconds(now_ns - picture.since_ns) + " for ";
    if (picture.missing.empty()) {
      std::vector<std::string> members;
      for (const std::uint32_t member : picture.absent) members.push_back(std::to_string(member));
      text +=
          picture.what + "; members that have not come: " + list_of(members, picture.missing_count);
    } else {
      text += picture.what + (picture.missing_count == 1 ? " " : "s ") +
              list_of(picture.missing, picture.missing_count);
    }
    const Waiter& waiter = *state_->waiters.find(due);
    out.push_back({waiter.client, waiter.request, Error{Code::kDeadlineExceeded, std::move(text)}});
    state_->forget_wait(due);
  }
  return state_->waiters.next_deadline_ns();
}

void Engine::begin_generation(std::uint32_t generation, Replies& out) {
  for (const WaiterId waiting : state_->waiters.all()) {
    const Waiter& waiter = *state_->waiters.find(waiting);
    out.push_back(
        {waiter.client, waiter.request,
         Error{Code::kAborted, "generation " + std::to_string(state_->generation) + " has ended"}});
    state_->waiters.remove(waiting);
  }
  for (State::Contents& contents : state_->spaces) contents = {};
  state_->bytes = 0;
  state_->keys = 0;
  state_->generation = generation;
}

std::uint32_t Engine::generation() const { return state_->generation; }

Picture Engine::picture() const {
  Picture picture;
  for (const WaiterId waiting : state_->waiters.all())
    picture.waiting.push_back(state_->describe(waiting));
  for (const auto& [id, client] : state_->clients) {
    std::string last = client.last_op;
    if (!client.last_key.empty()) last += " " + client.last_key;
    picture.clients.push_back({client.info, client.last_ns, std::move(last)});
  }
  return picture;
}

std::size_t Engine::bytes() const { return state_->bytes; }
std::size_t Engine::key_count() const { return state_->keys; }
std::size_t Engine::open_requests() const { return state_->waiters.size(); }

}  // namespace ivy::store
