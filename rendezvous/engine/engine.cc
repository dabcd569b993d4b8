#include "rendezvous/engine/engine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/explanation.h"
#include "rendezvous/engine/write_once.h"

namespace ivy::store {
namespace {

constexpr std::size_t kNamedInPicture = 16;
// At most kExplainAtOnce timeouts in kExplainEveryNs name the absent clients: a few milliseconds of
// work at 4,096 clients.
constexpr std::uint64_t kExplainEveryNs = 100'000'000;
constexpr std::size_t kExplainAtOnce = 16;
constexpr const char* kConnected = "connected";  // For clients without a request.

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;  // Clang 14 needs this guide.

std::string list_of(const std::vector<std::string>& names, std::size_t count) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + shown_key(name);
  if (count > names.size()) text += " and " + std::to_string(count - names.size()) + " more";
  return text;
}

// Returns the request's name ("set" and so on) for Seen and Waiting.
const char* name_of(const Request& request) {
  constexpr std::array<const char*, std::variant_size_v<Request>> kNames = {
      "set",    "get",       "wait",         "check",      "add",       "compare_set", "append",
      "delete", "multi_get", "multi_set",    "queue_push", "queue_pop", "queue_len",   "list",
      "count",  "barrier",   "add_and_wait", "watch",      "cancel",    "why"};
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
                 [](const Why&) -> const std::string& { return none; },
                 [](const auto& keyed) -> const std::string& { return keyed.key; }},
      request);
}

}  // namespace

Error too_long(const char* what, std::size_t bytes, std::size_t limit) {
  return Error{Code::kInvalidArgument, std::string(what) + " of " + std::to_string(bytes) +
                                           " bytes is longer than " + std::to_string(limit)};
}

Result<void> check_key(const std::string& key) {
  if (key.size() > kMaxKeyBytes) return too_long("a key", key.size(), kMaxKeyBytes);
  return {};
}

Result<void> check_key_count(std::size_t count) {
  if (count <= kMaxKeysPerRequest) return {};
  return Error{Code::kInvalidArgument, "a request with " + std::to_string(count) +
                                           " keys; at most " + std::to_string(kMaxKeysPerRequest)};
}

Result<void> check_keys(const std::vector<std::string>& keys) {
  IVY_CHECK(check_key_count(keys.size()));
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

Result<void> EngineState::room_for(std::size_t more_keys, std::size_t more_bytes) const {
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

// Stores the value without telling waiters or watches.
Result<void> EngineState::put(const std::string& key, std::string value, bool is_set_once) {
  IVY_CHECK(check_entry(key, value));
  IVY_CHECK(room_in_log(key.size() + value.size()));
  auto& values = contents().values;
  const auto found = values.find(key);
  if (found == values.end()) {
    const std::size_t cost = key.size() + value.size() + kKeyOverheadBytes;
    IVY_CHECK(room_for(1, cost));
    bytes += cost;
    keys += 1;
    changes += 1;
    note({EffectKind::kPut, space, key, value, 0, 0, {}});
    values.emplace(key, Entry{std::move(value), is_set_once});
    return {};
  }
  const std::size_t before = found->second.value.size();
  if (value.size() > before) IVY_CHECK(room_for(0, value.size() - before));
  bytes = bytes - before + value.size();
  note({EffectKind::kPut, space, key, value, 0, 0, {}});
  found->second = Entry{std::move(value), is_set_once};
  changes += 1;
  return {};
}

Result<std::int64_t> EngineState::add(const std::string& key, std::int64_t delta) {
  std::int64_t number = 0;
  const auto& values = contents().values;
  const auto found = values.find(key);
  if (found != values.end()) {
    const std::optional<std::int64_t> present = number_of(found->second.value);
    if (!present) {
      return Error{Code::kInvalidArgument,
                   "add to key '" + shown_key(key) + "': its value is not a number"};
    }
    number = *present;
  }
  if (__builtin_add_overflow(number, delta, &number)) {
    return Error{Code::kInvalidArgument,
                 "add to key '" + shown_key(key) + "': the sum has more than 64 bits"};
  }
  IVY_CHECK(put(key, std::to_string(number)));
  return number;
}

void EngineState::tell_waiters(const std::string& key) {
  for (const WaiterId waiter : waiters.missing(space, key)) settle(waiter, key);
  const auto& values = contents().values;
  const auto found = values.find(key);
  if (found != values.end()) tell_watches(key, Changed::What::kSet, found->second.value);
}

// Updates a waiter after a key that it misses was written.
void EngineState::settle(WaiterId id_of_waiter, const std::string& key) {
  Waiter& waiter = *waiters.find(id_of_waiter);
  const auto& values = contents().values;
  const auto found = values.find(key);
  switch (waiter.kind) {
    case WaitKind::kItem:
    case WaitKind::kBarrier:
      return;
    case WaitKind::kValue:
      if (found == values.end()) return;
      answer(waiter, Value{found->second.value});
      break;
    case WaitKind::kNumber:
      if (found == values.end() || number_of(found->second.value).value_or(0) < waiter.at_least)
        return;
      answer(waiter, Done{});
      break;
    case WaitKind::kKeys:
      if (!waiters.found(id_of_waiter, key)) return;
      // Keys that existed before may have been deleted since.
      if (!waiters.look_again(id_of_waiter, exists_here())) return;
      answer(waiter, Done{});
      break;
  }
  waiters.remove(id_of_waiter);
  changes += 1;
}

void EngineState::tell_watches(const std::string& key, Changed::What what,
                               const std::string& value) {
  for (const WatchEntry& watch : contents().watches) {
    if (!std::string_view(key).starts_with(watch.prefix)) continue;
    answer_to(watch.client, watch.request, Changed{what, key, value});
  }
  tell_exact_watches(key, what, value, false);
}

// One-shot watches are told of a queue as well: it makes the key exist, though it has no value.
void EngineState::tell_exact_watches(const std::string& key, Changed::What what,
                                     const std::string& value, bool only_one_shot) {
  auto& exact = contents().exact_watches;
  for (auto [at, end] = exact.equal_range(key); at != end;) {
    if (only_one_shot && !at->second.one_shot) {
      ++at;
      continue;
    }
    answer_to(at->second.client, at->second.request, Changed{what, key, value});
    if (!at->second.one_shot) {
      ++at;
      continue;
    }
    if (const auto of = clients.find(at->second.client); of != clients.end())
      of->second.watches -= 1;
    at = exact.erase(at);
  }
}

Waiter EngineState::waiter_here(WaitKind kind, std::vector<std::string> wanted,
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

Result<void> EngineState::room_to_wait(const std::vector<std::string>& wanted) const {
  if (waiters.find(client, id) != 0)
    return Error{Code::kInvalidArgument, "a request of this number waits already"};
  if (waiters.count(client) >= limits.waits_per_client) {
    return Error{Code::kResourceExhausted, "this client has " +
                                               std::to_string(limits.waits_per_client) +
                                               " requests that wait, its limit"};
  }
  const std::size_t more = Waiters::bytes_of(wanted);
  if (space == Space::kTorch && waiters.bytes(Space::kTorch) + more > limits.torch_waiting_bytes) {
    return Error{Code::kResourceExhausted, "requests of torch's clients that wait hold " +
                                               std::to_string(waiters.bytes(Space::kTorch)) +
                                               " bytes; at most " +
                                               std::to_string(limits.torch_waiting_bytes)};
  }
  if (waiters.bytes(client) + more > limits.waiting_bytes_per_client ||
      waiters.bytes() + more > limits.waiting_bytes) {
    return Error{Code::kResourceExhausted,
                 "requests that wait hold " + std::to_string(waiters.bytes(client)) +
                     " bytes of this client and " + std::to_string(waiters.bytes()) +
                     " in all; at most " + std::to_string(limits.waiting_bytes_per_client) +
                     " and " + std::to_string(limits.waiting_bytes)};
  }
  return {};
}

void EngineState::begin_wait(Waiter waiter) {
  const Result<void> room = room_to_wait(waiter.keys);
  if (!room.ok()) return answer(room.error());
  const bool by_existence = waiter.kind == WaitKind::kKeys;
  if (by_existence) {
    waiters.add(std::move(waiter), exists_here());
  } else {
    waiters.add(std::move(waiter), [](const std::string&) { return false; });
  }
}

void EngineState::end_watches(ClientId of, std::optional<RequestId> only) {
  const auto found = clients.find(of);
  if (found == clients.end() || found->second.watches == 0) return;
  Contents& there = spaces[static_cast<std::size_t>(found->second.info.space)];
  const auto is_theirs = [&](const WatchEntry& watch) {
    return watch.client == of && (!only || watch.request == *only);
  };
  found->second.watches -= std::erase_if(there.watches, is_theirs);
  found->second.watches -= std::erase_if(
      there.exact_watches, [&](const auto& entry) { return is_theirs(entry.second); });
}

// Removes a wait; a barrier's member that leaves counts as not arrived.
void EngineState::forget_wait(WaiterId waiting) {
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

Waiting EngineState::describe(WaiterId waiting) {
  const Waiter& waiter = *waiters.find(waiting);
  // A key that existed may have been deleted since.
  if (waiter.kind == WaitKind::kKeys) {
    waiters.look_again(waiting, [&](const std::string& key) { return exists(waiter.space, key); });
  }
  Waiting picture;
  const auto of = clients.find(waiter.client);
  if (of != clients.end()) picture.client = of->second.info;
  picture.since_ns = waiter.since_ns;
  if (waiter.kind == WaitKind::kBarrier) {
    const auto& barriers = spaces[static_cast<std::size_t>(waiter.space)].barriers;
    const BarrierRound& barrier = barriers.find(waiter.keys.front())->second;
    picture.what =
        "barrier '" + shown_key(waiter.keys.front()) + "' of " + std::to_string(barrier.size);
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

std::size_t cost_of(const Reply& reply) {
  return std::visit(
      Overloaded{
          [](const Value& value) { return value.bytes.size(); },
          [](const Values& values) {
            std::size_t bytes = 0;
            for (const std::string& value : values.bytes) bytes += value.size() + kReplyTextBytes;
            return bytes;
          },
          [](const Keys& keys) {
            std::size_t bytes = 0;
            for (const std::string& key : keys.keys) bytes += key.size() + kReplyTextBytes;
            return bytes;
          },
          [](const Compared& compared) { return compared.current ? compared.current->size() : 0; },
          [](const Changed& changed) { return changed.key.size() + changed.value.size(); },
          [](const Error& error) { return error.message.size(); },
          [](const Popped& popped) { return popped.item ? popped.item->size() : 0; },
          [](const auto&) { return std::size_t{8}; }},
      reply.body);
}

Engine::Engine(EngineLimits limits) : state_(std::make_unique<EngineState>(limits)) {}
Engine::~Engine() = default;

Result<ClientId> Engine::join(ClientInfo info, std::uint64_t now_ns) {
  if (info.generation != state_->generation) {
    return Error{Code::kFailedPrecondition, "generation " + std::to_string(info.generation) +
                                                " is not served: the store is at " +
                                                std::to_string(state_->generation)};
  }
  const ClientId id = state_->next_client++;
  if (info.session != 0) state_->answered.begin(info.session);
  state_->clients[id] = {std::move(info), now_ns, kConnected, {}, 0};
  return id;
}

void Engine::leave(ClientId client) {
  for (const WaiterId waiting : state_->waiters.of_client(client)) {
    state_->note_loss(*state_->waiters.find(waiting));
    state_->forget_wait(waiting);
  }
  state_->end_watches(client, std::nullopt);
  const auto gone = state_->clients.find(client);
  if (gone == state_->clients.end()) return;
  // Sessions of a generation before are forgotten.
  const ClientInfo& info = gone->second.info;
  if (info.session != 0 && info.generation == state_->generation)
    state_->answered.end(info.session);
  state_->clients.erase(gone);
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
  EngineState::Client& record = found->second;
  // Look-ups by a leaf's own connection do not count as requests.
  state_->requests += record.info.is_leaf ? 0 : 1;
  // A client that only asks who waits takes no part in the job.
  if (!std::holds_alternative<Why>(body)) {
    record.last_ns = now_ns;
    record.last_op = name_of(body);
    record.last_key = first_key_of(body);
  }
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
  const Numbered* numbered = numbered_of(body);
  if (numbered != nullptr && numbered->number != 0 && record.info.session != 0) {
    state_->serve_numbered(record.info.session, Numbered(*numbered), std::move(body));
  } else {
    state_->serve_request(std::move(body));
  }
  state_->end_record();
}

void EngineState::serve_request(Request&& request) {
  std::visit([this](auto&& kind) { serve(std::forward<decltype(kind)>(kind)); },
             std::move(request));
}

// Serves a numbered request. Such a request does not wait, so its own answer is the first reply.
void EngineState::serve_numbered(SessionId session, const Numbered& numbered, Request&& request) {
  const AnsweredRequests::Finding found = answered.find(session, numbered);
  switch (found.known) {
    case AnsweredRequests::Known::kAnswered:
      return std::visit([this](const auto& body) { answer(body); }, *found.answer);
    case AnsweredRequests::Known::kPast:
      return answer(Error{Code::kCancelled, "a copy of a request that its client is done with"});
    case AnsweredRequests::Known::kUnclear:
      return answer(Error{Code::kUnavailable,
                          "the store has forgotten what this client's last connection asked for: "
                          "whether the request was served is not known"});
    case AnsweredRequests::Known::kTooMany:
      return answer(Error{Code::kResourceExhausted,
                          "too many answers are kept for clients that may repeat themselves"});
    case AnsweredRequests::Known::kNew:
      break;
  }
  const std::size_t first = out->size();
  serve_request(std::move(request));
  const auto& body = (*out)[first].body;
  AnsweredRequests::Answer given = Done{};
  if (const auto* number = std::get_if<Number>(&body)) given = *number;
  if (const auto* error = std::get_if<Error>(&body)) given = *error;
  // The log keeps only answers to requests that changed something; any other may be done again when
  // it is repeated to another process.
  if (!effects.empty()) {
    const std::optional<AnsweredRequests::Kept> kept =
        AnsweredRequests::kept(session, numbered, given);
    if (kept) note(effect_of(*kept));
  }
  answered.remember(session, numbered.number, std::move(given));
}

// True if this timeout may name the absent clients. Each such text looks at every client, so when
// thousands of waits end at once only some get one.
bool EngineState::may_explain(std::uint64_t at_ns) {
  if (at_ns - explained_since_ns >= kExplainEveryNs) {
    explained_since_ns = at_ns;
    explained = 0;
  }
  return explained++ < kExplainAtOnce;
}

std::uint64_t Engine::advance(std::uint64_t now_ns, Replies& out) {
  state_->out = &out;
  state_->answered.advance(now_ns);
  state_->answer_ended_barriers();
  // The snapshot from before the first answer: clients that are answered now still count as
  // waiting.
  std::optional<Picture> before;
  while (const WaiterId due = state_->waiters.due(now_ns)) {
    const Waiting picture = state_->describe(due);
    std::string text = "waited " + shown_seconds(now_ns - picture.since_ns) + " for ";
    if (picture.missing.empty()) {
      std::vector<std::string> members;
      for (const std::uint32_t member : picture.absent) members.push_back(std::to_string(member));
      text +=
          picture.what + "; members that have not come: " + list_of(members, picture.missing_count);
    } else {
      text += picture.what + (picture.missing_count == 1 ? " " : "s ") +
              list_of(picture.missing, picture.missing_count);
    }
    if (state_->may_explain(now_ns)) {
      if (!before) before = this->picture();
      text += "; " + explain_absence(*before, picture, now_ns);
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
  for (EngineState::Contents& contents : state_->spaces) contents = {};
  state_->answered.clear();
  for (auto& [id, client] : state_->clients) client.watches = 0;
  state_->bytes = 0;
  state_->keys = 0;
  state_->generation = generation;
  state_->note({EffectKind::kGeneration, Space::kNative, {}, {}, generation, 0, {}});
  state_->end_record();
}

std::uint32_t Engine::generation() const { return state_->generation; }

Picture EngineState::picture(ClientId asker) {
  Picture picture;
  for (const WaiterId waiting : waiters.all()) {
    picture.waiting.push_back(describe(waiting));
    for (const Companion& companion : waiters.find(waiting)->companions) {
      const auto found = clients.find(companion.client);
      if (found == clients.end()) continue;
      Waiting& same = picture.waiting.emplace_back(picture.waiting.back());
      same.client = found->second.info;
      same.since_ns = companion.since_ns;
    }
  }
  for (const auto& [known, other] : clients) {
    if (other.info.is_leaf) continue;
    if (known == asker && other.last_op == std::string_view(kConnected)) continue;
    std::string last = other.last_op;
    if (!other.last_key.empty()) last += " " + other.last_key;
    picture.clients.push_back({other.info, other.last_ns, std::move(last)});
  }
  return picture;
}

Picture Engine::picture(ClientId asker) const { return state_->picture(asker); }

void EngineState::serve(Why&&) {
  std::string text = explain(picture(client), now_ns);
  answer(Value{std::move(text)});
}

const std::string* Engine::lasting_value(Space space, const std::string& key) const {
  const EngineState::Contents& there = state_->spaces[static_cast<std::size_t>(space)];
  const auto found = there.values.find(key);
  if (found == there.values.end()) return nullptr;
  const bool lasts = space == Space::kTorch ? write_once_by_name(key) : found->second.is_set_once;
  return lasts ? &found->second.value : nullptr;
}

void Engine::set_companions(ClientId client, RequestId request, std::vector<Companion> companions) {
  if (const WaiterId waiting = state_->waiters.find(client, request); waiting != 0)
    state_->waiters.find(waiting)->companions = std::move(companions);
}

std::size_t Engine::bytes() const { return state_->bytes; }
std::size_t Engine::key_count() const { return state_->keys; }
std::size_t Engine::open_requests() const { return state_->waiters.size(); }
std::size_t Engine::waiting_bytes() const { return state_->waiters.bytes(); }
std::uint64_t Engine::changes() const { return state_->changes; }
std::uint64_t Engine::requests() const { return state_->requests; }
void Engine::count_request() { state_->requests += 1; }
void Engine::end_watch(ClientId client, RequestId request) { state_->end_watches(client, request); }

}  // namespace ivy::store
