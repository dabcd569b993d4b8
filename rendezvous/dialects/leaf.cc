#include "rendezvous/dialects/leaf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/leaf_wire.h"
#include "rendezvous/engine/explanation.h"

namespace ivy::store {
namespace {

// The most keys whose checks are counted; beyond it counting begins anew.
constexpr std::size_t kCountedChecks = 4096;
// Marks a shared flight whose companions must be reported to the store again.
constexpr std::size_t kNotTold = ~std::size_t{0};

// Returns a key with its space as one text.
std::string name_of(Space space, std::string_view key) {
  std::string name(1, static_cast<char>(space));
  name += key;
  return name;
}

// Returns the keys that a request may change or create.
std::vector<std::string> keys_written(const Request& request) {
  if (const auto* set = std::get_if<Set>(&request)) return {set->key};
  if (const auto* add = std::get_if<Add>(&request)) return {add->key};
  if (const auto* compare = std::get_if<CompareSet>(&request)) return {compare->key};
  if (const auto* append = std::get_if<Append>(&request)) return {append->key};
  if (const auto* gone = std::get_if<Delete>(&request)) return {gone->key};
  if (const auto* push = std::get_if<QueuePush>(&request)) return {push->key};
  if (const auto* pop = std::get_if<QueuePop>(&request)) return {pop->key};
  if (const auto* add = std::get_if<AddAndWait>(&request)) return {add->key};
  std::vector<std::string> keys;
  if (const auto* many = std::get_if<MultiSet>(&request))
    for (const auto& [key, value] : many->entries) keys.push_back(key);
  return keys;
}

}  // namespace

struct Leaf::State {
  using Name = std::pair<ClientId, RequestId>;
  struct Member {
    Name name;
    std::uint64_t deadline_ns = kNever;
    std::uint64_t since_ns = 0;
  };
  // The question of a flight; the first letter of its name.
  enum class Quest : char { kExists = 'w', kValue = 'g', kValueNow = 'n' };
  struct Flight {
    Space space = Space::kNative;
    Quest quest = Quest::kExists;
    std::string key;
    std::uint32_t id = 0;
    std::vector<Member> members;  // The first is the one whose request went up.
    std::vector<Member> joiners;
    std::size_t told = 0;  // Companions that the store knows of.
  };
  using Flights = std::map<std::string, Flight>;
  // A request that has gone up.
  struct Open {
    Name name;
    Space space = Space::kNative;
    std::string flight;              // The name of its flight; empty: it is not shared.
    std::vector<std::string> reads;  // Keys whose values may be kept.
    std::vector<std::string> writes;
    std::string follows;     // The key of a check of one key.
    bool is_follow = false;  // FOLLOW: asks for FORGET as well.
    bool stays_open = false;
    bool is_silent = false;  // No client waits for its answer.
  };
  struct Kept {
    std::optional<std::string> value;  // Nothing: the key is missing.
  };

  State(Leaf& leaf, std::uint32_t generation_, LeafLimits limits_)
      : unsent(leaf.unsent), limits(limits_), generation(generation_) {}

  bool answered_here(Check& check);
  bool answered_here(Get& get);
  bool answered_here(Wait& wait);
  bool answered_here(MultiGet& get);
  bool answered_here(Cancel& cancel);
  template <class Other>
  bool answered_here(Other&) {
    return false;
  }
  void forward(Request& request);
  std::uint32_t send_request(ClientId from, Request& request, Open open);
  std::uint32_t upcoming_id();
  void follow(const std::string& key);
  void leave_follows(ClientId gone);

  void fly(Quest quest, const std::string& key, std::uint64_t deadline_ns);
  void launch(const std::string& name, std::vector<Member> members);
  void land(const std::string& name, const decltype(Reply::body)& body, bool is_kept);
  bool drop_member(const Name& gone);
  void tell_companions(Flight& flight);

  const Kept* known(const std::string& key) const {
    const std::string name = name_of(space, key);
    if (writing.contains(name)) return nullptr;
    const auto found = kept.find(name);
    return found == kept.end() ? nullptr : &found->second;
  }
  const std::string* value_of(const std::string& key) const {
    const Kept* found = known(key);
    return found == nullptr || !found->value ? nullptr : &*found->value;
  }
  void keep(const std::string& name, std::optional<std::string> value);
  void forget(const std::string& name);

  Result<void> take(const WireFrame& frame);
  Result<bool> take_marks(const Open& open, const decltype(Reply::body)& body, PayloadReader& in);
  void settle(std::uint32_t id, const Open& open, decltype(Reply::body) body, bool is_kept);
  void end_check(const Open& asked, decltype(Reply::body)& body);
  void end_writes(const Open& open);

  template <class Body>
  void answer_to(const Name& name, Body body) {
    Reply& reply = out->emplace_back();
    reply.client = name.first;
    reply.request = name.second;
    reply.body = std::move(body);
  }
  template <class Body>
  void answer(Body body) {
    answer_to({client, request}, std::move(body));
  }

  std::string& unsent;
  const LeafLimits limits;
  std::uint32_t generation = 0;
  ClientId next_client = 1;
  std::unordered_map<ClientId, Space> clients;
  WireDecoder decoder{kMaxLeafFrameBytes};
  std::uint32_t next_id = 1;
  std::unordered_map<std::uint32_t, Open> open;
  std::map<Name, std::uint32_t> by_name;  // Open requests that are not shared.
  Flights flights;
  std::map<Name, std::string> flying;                  // Member or joiner to its flight.
  std::set<std::pair<std::uint64_t, Name>> deadlines;  // By time, for members and joiners.
  std::unordered_map<std::string, Kept> kept;          // By name_of().
  std::size_t kept_bytes = 0;
  std::unordered_map<std::string, int> checks;         // Misses in a row, by name_of().
  std::map<std::string, std::vector<Name>> following;  // Askers during a FOLLOW.
  std::unordered_map<std::string, int> writing;        // Writes that are under way, by name_of().
  std::uint64_t next_told_ns = 0;
  LeafCounts counts;

  // Set for the request, or the frames, that are being served.
  ClientId client = 0;
  RequestId request = 0;
  Space space = Space::kNative;
  std::uint64_t now_ns = 0;
  Replies* out = nullptr;
};

bool Leaf::State::answered_here(Check& check) {
  bool all = true;
  for (const std::string& key : check.keys) {
    const Kept* found = known(key);
    if (found != nullptr && !found->value) {
      answer(Number{0});
      return true;
    }
    all &= found != nullptr;
  }
  if (all) {
    answer(Number{1});
    return true;
  }
  if (check.keys.size() != 1) return false;
  const std::string name = name_of(space, check.keys.front());
  const auto counted = checks.find(name);
  if (writing.contains(name) || counted == checks.end() || counted->second < limits.steady_checks)
    return false;
  // A FOLLOW of this key is under way: its answer serves this check, too.
  if (const auto asked = following.find(name); asked != following.end()) {
    asked->second.push_back({client, request});
    return true;
  }
  following[name];
  follow(check.keys.front());
  return true;
}

// Sends a FOLLOW in place of a check of this key.
void Leaf::State::follow(const std::string& key) {
  const std::uint32_t id = upcoming_id();
  std::string payload;
  put_u8(payload, static_cast<std::uint8_t>(space));
  put_text(payload, key);
  append_frame(unsent, {static_cast<std::uint8_t>(LeafOp::kFollow), id}, payload);
  counts.forwarded += 1;
  Open& asked = open[id];
  asked.name = {client, request};
  asked.space = space;
  asked.follows = key;
  asked.is_follow = true;
  by_name[asked.name] = id;
}

bool Leaf::State::answered_here(Get& get) {
  if (const std::string* value = value_of(get.key)) {
    answer(Value{*value});
    return true;
  }
  // An oversized key goes to the store, which refuses it.
  if (get.key.size() > kMaxKeyBytes) return false;
  if (writing.contains(name_of(space, get.key))) return false;
  fly(get.wait_until_ns ? Quest::kValue : Quest::kValueNow, get.key,
      get.wait_until_ns.value_or(kNever));
  return true;
}

bool Leaf::State::answered_here(Wait& wait) {
  const auto is_here = [this](const std::string& key) { return value_of(key) != nullptr; };
  if (std::all_of(wait.keys.begin(), wait.keys.end(), is_here)) {
    answer(Done{});
    return true;
  }
  if (wait.keys.size() != 1 || wait.keys.front().size() > kMaxKeyBytes) return false;
  if (writing.contains(name_of(space, wait.keys.front()))) return false;
  fly(Quest::kExists, wait.keys.front(), wait.deadline_ns);
  return true;
}

bool Leaf::State::answered_here(MultiGet& get) {
  Values values;
  std::size_t bytes = 0;
  for (const std::string& key : get.keys) {
    const std::string* value = value_of(key);
    if (value == nullptr) return false;
    bytes += value->size() + kReplyTextBytes;
    if (bytes > kMaxReplyBytes) return false;
    values.bytes.push_back(*value);
  }
  answer(std::move(values));
  return true;
}

// Cancels a request that shares a flight here. The store cancels one that was sent by itself, as
// its answer may be under way.
bool Leaf::State::answered_here(Cancel& cancel) {
  std::vector<RequestId> gone_up;
  cancel.or_these.push_back(cancel.request);
  for (const RequestId each : cancel.or_these) {
    const Name name{client, each};
    if (drop_member(name)) {
      answer_to(name, Error{Code::kCancelled, "cancelled by its client"});
    } else if (const auto found = by_name.find(name); found != by_name.end()) {
      gone_up.push_back(found->second);
    }
  }
  cancel.request = 0;
  cancel.or_these = std::move(gone_up);
  if (!cancel.or_these.empty()) return false;
  answer(Done{});
  return true;
}

void Leaf::State::forward(Request& body) {
  Open asked;
  asked.name = {client, request};
  asked.space = space;
  asked.writes = keys_written(body);
  for (const std::string& key : asked.writes) {
    const std::string name = name_of(space, key);
    forget(name);
    writing[name] += 1;
  }
  if (const auto* get = std::get_if<Get>(&body)) asked.reads = {get->key};
  if (const auto* wait = std::get_if<Wait>(&body); wait != nullptr && wait->keys.size() == 1)
    asked.reads = wait->keys;
  if (const auto* many = std::get_if<MultiGet>(&body)) asked.reads = many->keys;
  if (const auto* check = std::get_if<Check>(&body); check != nullptr && check->keys.size() == 1)
    asked.follows = check->keys.front();
  asked.stays_open = std::holds_alternative<Watch>(body);
  const Name name = asked.name;
  by_name[name] = send_request(client, body, std::move(asked));
}

std::uint32_t Leaf::State::upcoming_id() {
  while (next_id == 0 || open.contains(next_id)) ++next_id;
  return next_id++;
}

std::uint32_t Leaf::State::send_request(ClientId from, Request& body, Open asked) {
  const std::uint32_t id = upcoming_id();
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(from));
  put_request(payload, body, now_ns);
  append_frame(unsent, {request_kind(body), id}, payload);
  counts.forwarded += 1;
  open[id] = std::move(asked);
  return id;
}

void Leaf::State::fly(Quest quest, const std::string& key, std::uint64_t deadline_ns) {
  const std::string name = static_cast<char>(quest) + name_of(space, key);
  const Member member{{client, request}, deadline_ns, now_ns};
  const auto found = flights.find(name);
  if (found == flights.end()) {
    Flight& flight = flights[name];
    flight.space = space;
    flight.quest = quest;
    flight.key = key;
    return launch(name, {member});
  }
  found->second.joiners.push_back(member);
  flying[member.name] = name;
  if (deadline_ns != kNever) deadlines.insert({deadline_ns, member.name});
}

void Leaf::State::launch(const std::string& name, std::vector<Member> members) {
  if (members.empty()) {
    flights.erase(name);
    return;
  }
  Flight& flight = flights.at(name);
  const Member& leader = members.front();
  deadlines.erase({leader.deadline_ns, leader.name});
  for (const Member& member : members) flying[member.name] = name;
  Request body;
  switch (flight.quest) {
    case Quest::kExists:
      body = Wait{{flight.key}, leader.deadline_ns};
      break;
    case Quest::kValue:
      body = Get{flight.key, leader.deadline_ns};
      break;
    case Quest::kValueNow:
      body = Get{flight.key, std::nullopt};
      break;
  }
  Open asked;
  asked.name = leader.name;
  asked.space = flight.space;
  asked.flight = name;
  asked.reads = {flight.key};
  flight.joiners.clear();
  flight.told = 0;
  flight.id = send_request(leader.name.first, body, std::move(asked));
  flight.members = std::move(members);
}

// Hands out the answer to a flight. The requests that may not share it are sent again.
void Leaf::State::land(const std::string& name, const decltype(Reply::body)& body, bool is_kept) {
  Flight& flight = flights.at(name);
  const auto* error = std::get_if<Error>(&body);
  // Such an error concerns the first member alone, whose request went up.
  const bool is_leaders = error != nullptr && (error->code == Code::kDeadlineExceeded ||
                                               error->code == Code::kCancelled ||
                                               error->code == Code::kResourceExhausted);
  std::vector<Member> done = std::move(flight.members);
  std::vector<Member> next = std::move(flight.joiners);
  if (is_kept) done.insert(done.end(), next.begin(), next.end());
  if (is_kept) next.clear();
  if (is_leaders) {
    next.insert(next.begin(), done.begin() + 1, done.end());
    done.resize(1);
  }
  for (const Member& member : done) {
    flying.erase(member.name);
    deadlines.erase({member.deadline_ns, member.name});
    answer_to(member.name, body);
  }
  launch(name, std::move(next));
}

// Takes a request out of its flight. Returns false if it is in none.
bool Leaf::State::drop_member(const Name& gone) {
  const auto found = flying.find(gone);
  if (found == flying.end()) return false;
  const std::string name = found->second;
  flying.erase(found);
  Flight& flight = flights.at(name);
  const bool was_leader = flight.members.front().name == gone;
  const auto is_gone = [&](const Member& member) {
    if (member.name == gone) deadlines.erase({member.deadline_ns, gone});
    return member.name == gone;
  };
  std::erase_if(flight.members, is_gone);
  std::erase_if(flight.joiners, is_gone);
  flight.told = kNotTold;
  if (!was_leader) return true;
  open.erase(flight.id);
  if (clients.contains(gone.first)) {  // Otherwise LEAVE tells the store.
    Request cancel = Cancel{flight.id, {}};
    Open silent;
    silent.is_silent = true;
    send_request(gone.first, cancel, std::move(silent));
  }
  std::vector<Member> next = std::move(flight.members);
  next.insert(next.end(), flight.joiners.begin(), flight.joiners.end());
  launch(name, std::move(next));
  return true;
}

void Leaf::State::tell_companions(Flight& flight) {
  const std::size_t sharing = flight.members.size() + flight.joiners.size() - 1;
  if (sharing == flight.told) return;
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(flight.members.front().name.first));
  put_u32(payload, flight.id);
  put_u32(payload, static_cast<std::uint32_t>(sharing));
  const auto put = [&](const Member& member) {
    put_u32(payload, static_cast<std::uint32_t>(member.name.first));
    put_u64(payload, now_ns - member.since_ns);
  };
  for (std::size_t i = 1; i < flight.members.size(); ++i) put(flight.members[i]);
  for (const Member& joiner : flight.joiners) put(joiner);
  append_frame(unsent, {static_cast<std::uint8_t>(LeafOp::kCompanions), 0}, payload);
  counts.forwarded += 1;
  flight.told = sharing;
}

void Leaf::State::keep(const std::string& name, std::optional<std::string> value) {
  forget(name);
  if (writing.contains(name) || kept.size() >= limits.kept_keys) return;
  const std::size_t cost = name.size() + (value ? value->size() : 0);
  if (kept_bytes + cost > limits.kept_bytes) return;
  kept_bytes += cost;
  kept[name] = {std::move(value)};
}

void Leaf::State::forget(const std::string& name) {
  checks.erase(name);
  const auto found = kept.find(name);
  if (found == kept.end()) return;
  kept_bytes -= name.size() + (found->second.value ? found->second.value->size() : 0);
  kept.erase(found);
}

Result<void> Leaf::State::take(const WireFrame& frame) {
  PayloadReader in(frame.payload);
  if (frame.head.kind == kForgetFrame) {
    const auto of = static_cast<Space>(in.u8());
    const std::string key(in.text());
    if (!in.done()) return Error{Code::kDataLoss, "the store: a damaged frame"};
    forget(name_of(of, key));
    return {};
  }
  decltype(Reply::body) body = IVY_TRY(take_reply(frame.head.kind, in));
  const auto found = open.find(frame.head.id);
  if (found == open.end()) return {};  // No client waits for it any more.
  const bool is_kept = IVY_TRY(take_marks(found->second, body, in));
  if (!in.done()) return Error{Code::kDataLoss, "the store: a damaged reply"};
  if (found->second.stays_open && !std::holds_alternative<Error>(body)) {
    answer_to(found->second.name, std::move(body));
    return {};
  }
  const Open asked = std::move(found->second);
  open.erase(found);
  settle(frame.head.id, asked, std::move(body), is_kept);
  return {};
}

// Keeps the values that may be kept. Returns true if the flight's one value is kept.
Result<bool> Leaf::State::take_marks(const Open& asked, const decltype(Reply::body)& body,
                                     PayloadReader& in) {
  if (asked.reads.empty()) return false;
  const Error damaged{Code::kDataLoss, "the store: a damaged reply"};
  if (const auto* value = std::get_if<Value>(&body)) {
    if (in.u8() != 1) return in.ok() ? Result<bool>(false) : damaged;
    keep(name_of(asked.space, asked.reads.front()), value->bytes);
    return true;
  }
  if (std::holds_alternative<Done>(body)) {
    if (in.u8() != 1) return in.ok() ? Result<bool>(false) : damaged;
    std::string value(in.text());
    if (!in.ok()) return damaged;
    keep(name_of(asked.space, asked.reads.front()), std::move(value));
    return true;
  }
  if (const auto* values = std::get_if<Values>(&body)) {
    if (values->bytes.size() != asked.reads.size()) return damaged;
    for (std::size_t i = 0; i < values->bytes.size(); ++i)
      if (in.u8() == 1) keep(name_of(asked.space, asked.reads[i]), values->bytes[i]);
  }
  return false;
}

void Leaf::State::settle(std::uint32_t id, const Open& asked, decltype(Reply::body) body,
                         bool is_kept) {
  end_writes(asked);
  if (asked.is_silent) return;
  if (!asked.flight.empty()) {
    const auto flight = flights.find(asked.flight);
    if (flight != flights.end() && flight->second.id == id) land(asked.flight, body, is_kept);
    return;
  }
  by_name.erase(asked.name);
  if (!asked.follows.empty()) end_check(asked, body);
  answer_to(asked.name, std::move(body));
}

void Leaf::State::end_check(const Open& asked, decltype(Reply::body)& body) {
  const std::string name = name_of(asked.space, asked.follows);
  const auto* number = std::get_if<Number>(&body);
  const std::int64_t said = number == nullptr ? 1 : number->value;
  std::vector<Name> others;
  if (const auto found = following.find(name); found != following.end() && asked.is_follow) {
    others = std::move(found->second);
    following.erase(found);
  }
  if (said == kMissingAndFollowed) {
    keep(name, std::nullopt);
    body = Number{0};
    for (const Name& other : others) answer_to(other, Number{0});
    return;
  }
  if (said == kMissing) {
    if (checks.size() >= kCountedChecks) checks.clear();
    checks[name] += 1;
  } else {
    checks.erase(name);
  }
  for (const Name& other : others) {
    Request check = Check{{asked.follows}};
    client = other.first;
    request = other.second;
    space = asked.space;
    forward(check);
  }
}

void Leaf::State::end_writes(const Open& asked) {
  for (const std::string& key : asked.writes) {
    const auto found = writing.find(name_of(asked.space, key));
    if (found != writing.end() && --found->second == 0) writing.erase(found);
  }
}

Leaf::Leaf(std::uint32_t generation, LeafLimits limits)
    : state_(std::make_unique<State>(*this, generation, limits)) {}
Leaf::~Leaf() = default;

Result<ClientId> Leaf::join(ClientInfo info, std::uint64_t now_ns) {
  State& state = *state_;
  state.now_ns = now_ns;
  if (info.generation != state.generation) {
    return Error{Code::kFailedPrecondition, "generation " + std::to_string(info.generation) +
                                                " is not served: the store is at " +
                                                std::to_string(state.generation)};
  }
  const ClientId id = state.next_client++;
  state.clients[id] = info.space;
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(id));
  put_u8(payload, static_cast<std::uint8_t>(info.space));
  put_u8(payload, info.rank ? 1 : 0);
  put_u32(payload, info.rank.value_or(0));
  put_u32(payload, info.pid);
  put_u64(payload, info.session);
  put_text(payload, info.address);
  append_frame(unsent, {static_cast<std::uint8_t>(LeafOp::kJoin), 0}, payload);
  return id;
}

void Leaf::leave(ClientId client) {
  State& state = *state_;
  const auto found = state.clients.find(client);
  if (found == state.clients.end()) return;
  state.clients.erase(found);
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(client));
  append_frame(unsent, {static_cast<std::uint8_t>(LeafOp::kLeave), 0}, payload);
  state.leave_follows(client);
  const State::Name first{client, 0};
  for (auto at = state.flying.lower_bound(first);
       at != state.flying.end() && at->first.first == client;
       at = state.flying.lower_bound(first)) {
    const State::Name name = at->first;
    state.drop_member(name);
  }
  for (auto at = state.by_name.lower_bound(first);
       at != state.by_name.end() && at->first.first == client;) {
    // Other clients may share its answer.
    const auto asked = state.open.find(at->second);
    const bool is_shared = asked != state.open.end() && asked->second.is_follow;
    if (asked != state.open.end()) state.end_writes(asked->second);
    if (!is_shared) state.open.erase(at->second);
    at = state.by_name.erase(at);
  }
}

void Leaf::State::leave_follows(ClientId gone) {
  for (auto& [name, others] : following)
    std::erase_if(others, [&](const Name& other) { return other.first == gone; });
}

void Leaf::describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t>) {
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(client));
  put_u32(payload, pid);
  append_frame(unsent, {static_cast<std::uint8_t>(LeafOp::kDescribe), 0}, payload);
}

void Leaf::apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
                 Replies& out) {
  State& state = *state_;
  state.client = client;
  state.request = request;
  state.space = state.clients.at(client);
  state.now_ns = now_ns;
  state.out = &out;
  state.counts.asked += 1;
  const bool done = std::visit([&](auto& kind) { return state.answered_here(kind); }, body);
  if (!done) state.forward(body);
}

Result<void> Leaf::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  state_->now_ns = now_ns;
  state_->out = &out;
  state_->decoder.feed(bytes);
  while (true) {
    const std::optional<WireFrame> frame = IVY_TRY(state_->decoder.next());
    if (!frame) return {};
    IVY_CHECK(state_->take(*frame));
  }
}

std::uint64_t Leaf::advance(std::uint64_t now_ns, Replies& out) {
  State& state = *state_;
  state.now_ns = now_ns;
  state.out = &out;
  while (!state.deadlines.empty() && state.deadlines.begin()->first <= now_ns) {
    const State::Name name = state.deadlines.begin()->second;
    const State::Flight& flight = state.flights.at(state.flying.at(name));
    std::uint64_t since = now_ns;
    for (const auto* shared : {&flight.members, &flight.joiners})
      for (const State::Member& member : *shared)
        if (member.name == name) since = member.since_ns;
    state.answer_to(name, Error{Code::kDeadlineExceeded, "waited " + shown_seconds(now_ns - since) +
                                                             " for key " + shown_key(flight.key)});
    state.drop_member(name);
  }
  if (now_ns >= state.next_told_ns) {
    state.next_told_ns = now_ns + state.limits.share_told_ns;
    for (auto& [name, flight] : state.flights)
      if (now_ns - flight.members.front().since_ns >= state.limits.share_told_ns)
        state.tell_companions(flight);
  }
  return state.deadlines.empty() ? kNever : state.deadlines.begin()->first;
}

void Leaf::end_watch(ClientId client, RequestId request) {
  State& state = *state_;
  const auto found = state.by_name.find({client, request});
  if (found == state.by_name.end()) return;
  Request cancel = Cancel{found->second, {}};
  State::Open silent;
  silent.is_silent = true;
  state.open.erase(found->second);
  state.by_name.erase(found);
  state.send_request(client, cancel, std::move(silent));
}

void Leaf::begin_generation(std::uint32_t generation, Replies& out) {
  State& state = *state_;
  const Error ended{Code::kAborted,
                    "generation " + std::to_string(state.generation) + " has ended"};
  state.out = &out;
  for (const auto& [name, id] : state.by_name) state.answer_to(name, ended);
  for (const auto& [name, flight] : state.flying) state.answer_to(name, ended);
  state.by_name.clear();
  state.flying.clear();
  state.flights.clear();
  state.deadlines.clear();
  state.following.clear();
  state.open.clear();
  state.kept.clear();
  state.kept_bytes = 0;
  state.generation = generation;
}

std::uint32_t Leaf::generation() const { return state_->generation; }
std::uint64_t Leaf::changes() const { return 0; }
bool Leaf::takes_more() const { return unsent.size() <= state_->limits.unsent_bytes; }
LeafCounts Leaf::counts() const { return state_->counts; }
std::size_t Leaf::open_requests() const { return state_->by_name.size() + state_->flying.size(); }

}  // namespace ivy::store
