#include "rendezvous/dialects/leaf_dialect.h"

#include <array>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/leaf_wire.h"

namespace ivy::store {
namespace {

// Ids of the leaf's own watches begin above those of the frames.
constexpr RequestId kFirstWatch = RequestId{1} << 32;
constexpr std::array<Space, 2> kFollowed = {Space::kNative, Space::kTorch};

Error damaged(const std::string& what) {
  return Error{Code::kDataLoss, "a leaf's connection: " + what};
}

// Joins the leaf's host and the client's port: "10.0.0.2:4123" and "127.0.0.1:777" make
// "10.0.0.2:777". A client of a Unix socket has no port and gets the host alone.
std::string address_on_host(const std::string& leaf, const std::string& client) {
  const std::string host = leaf.substr(0, leaf.rfind(':'));
  const std::size_t colon = client.rfind(':');
  return colon == std::string::npos ? host + ":0" : host + client.substr(colon);
}

}  // namespace

struct LeafDialect::State {
  // A request that reads, whose values the leaf may be allowed to keep.
  struct OpenRead {
    Space space = Space::kNative;
    std::vector<std::string> keys;
    std::uint32_t client = 0;
  };
  struct Member {
    ClientId id = 0;
    Space space = Space::kNative;
  };

  Result<void> serve(const WireFrame& frame, std::uint64_t now_ns, Replies& out);
  Result<void> join(PayloadReader& in, std::uint64_t now_ns);
  Result<void> leave(PayloadReader& in);
  Result<void> companions(PayloadReader& in, std::uint64_t now_ns);
  Result<void> follow(const FrameHead& head, PayloadReader& in, std::uint64_t now_ns, Replies& out);
  Result<void> request(const FrameHead& head, PayloadReader& in, std::uint64_t now_ns,
                       Replies& out);
  Result<const Member*> member(std::uint32_t number) const;
  void note_read(std::uint32_t id, std::uint32_t client, Space space, const Request& request);
  bool may_keep(Space space, const std::string& key, const std::string* value,
                std::uint64_t now_ns);
  std::optional<bool> watch(Space space, const std::string& key, std::uint64_t now_ns);
  void put_marks(const OpenRead& read, const Reply& reply, std::string& payload);
  std::optional<Space> own_space(ClientId id) const {
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i] == id) return kFollowed[i];
    return std::nullopt;
  }

  Engine& engine;
  std::uint32_t generation = 0;
  std::string address;
  std::array<ClientId, 2> own{};
  WireDecoder decoder{kMaxLeafFrameBytes};
  std::unordered_map<std::uint32_t, Member> members = {};
  std::unordered_map<std::uint32_t, OpenRead> reads = {};
  std::array<std::set<std::string>, 2> followed = {};  // Keys that will be told by FORGET.
  std::vector<ClientId> joined = {};
  std::vector<ClientId> left = {};
  RequestId next_watch = kFirstWatch;
  std::uint64_t now = 0;  // The time of the last turn.
  bool turn_over = false;
};

LeafDialect::LeafDialect(std::unique_ptr<State> state) : state_(std::move(state)) {}

LeafDialect::~LeafDialect() {
  for (const auto& [number, member] : state_->members) state_->engine.leave(member.id);
  for (const ClientId id : state_->own) state_->engine.leave(id);
}

ClientId LeafDialect::client() const { return state_->own.front(); }
std::size_t LeafDialect::client_count() const { return state_->members.size(); }
bool LeafDialect::has_more() const { return state_->turn_over; }
std::vector<ClientId> LeafDialect::take_joined() { return std::exchange(state_->joined, {}); }
std::vector<ClientId> LeafDialect::take_left() { return std::exchange(state_->left, {}); }

Result<std::unique_ptr<LeafDialect>> LeafDialect::make(Engine& engine, std::uint32_t generation,
                                                       const std::string& address,
                                                       std::uint64_t now_ns) {
  auto state = std::make_unique<State>(
      State{.engine = engine, .generation = generation, .address = address, .now = now_ns});
  for (std::size_t i = 0; i < kFollowed.size(); ++i) {
    ClientInfo info;
    info.space = kFollowed[i];
    info.generation = generation;
    info.address = address;
    info.is_leaf = true;
    state->own[i] = IVY_TRY(engine.join(std::move(info), now_ns));
    state->joined.push_back(state->own[i]);
  }
  return std::unique_ptr<LeafDialect>(new LeafDialect(std::move(state)));
}

Result<void> LeafDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  if (!bytes.empty()) state_->decoder.feed(bytes);
  state_->turn_over = false;
  state_->now = now_ns;
  Turn turn(out);
  while (!turn.over()) {
    const std::optional<WireFrame> frame = IVY_TRY(state_->decoder.next());
    if (!frame) return {};
    IVY_CHECK(state_->serve(*frame, now_ns, out));
    turn.count();
  }
  state_->turn_over = true;
  return {};
}

Result<void> LeafDialect::State::serve(const WireFrame& frame, std::uint64_t now_ns, Replies& out) {
  PayloadReader in(frame.payload);
  switch (static_cast<LeafOp>(frame.head.kind)) {
    case LeafOp::kJoin:
      return join(in, now_ns);
    case LeafOp::kLeave:
      return leave(in);
    case LeafOp::kDescribe: {
      const Member* of = IVY_TRY(member(in.u32()));
      const std::uint32_t pid = in.u32();
      if (!in.done()) return damaged("a description is damaged");
      engine.describe(of->id, pid, std::nullopt);
      return {};
    }
    case LeafOp::kCompanions:
      return companions(in, now_ns);
    case LeafOp::kFollow:
      return follow(frame.head, in, now_ns, out);
    default:
      return request(frame.head, in, now_ns, out);
  }
}

Result<const LeafDialect::State::Member*> LeafDialect::State::member(std::uint32_t number) const {
  const auto found = members.find(number);
  if (found == members.end()) return damaged("no client " + std::to_string(number));
  return &found->second;
}

Result<void> LeafDialect::State::join(PayloadReader& in, std::uint64_t now_ns) {
  const std::uint32_t number = in.u32();
  ClientInfo info;
  const std::uint8_t space = in.u8();
  const bool has_rank = in.u8() != 0;
  const std::uint32_t rank = in.u32();
  info.pid = in.u32();
  info.session = in.u64();
  info.address = address_on_host(address, std::string(in.text()));
  if (!in.done() || space > static_cast<std::uint8_t>(Space::kPmi))
    return damaged("a client that joins is damaged");
  if (members.contains(number)) return damaged("client " + std::to_string(number) + " is there");
  if (members.size() >= kMaxLeafClients)
    return damaged("more than " + std::to_string(kMaxLeafClients) + " clients");
  info.space = static_cast<Space>(space);
  info.generation = generation;
  if (has_rank) info.rank = rank;
  Member member{0, info.space};
  member.id = IVY_TRY(engine.join(std::move(info), now_ns));
  members.emplace(number, member);
  joined.push_back(member.id);
  return {};
}

Result<void> LeafDialect::State::leave(PayloadReader& in) {
  const std::uint32_t number = in.u32();
  const Member* gone = IVY_TRY(member(number));
  if (!in.done()) return damaged("a client that leaves is damaged");
  engine.leave(gone->id);
  left.push_back(gone->id);
  members.erase(number);
  std::erase_if(reads, [&](const auto& read) { return read.second.client == number; });
  return {};
}

Result<void> LeafDialect::State::companions(PayloadReader& in, std::uint64_t now_ns) {
  const std::uint32_t leader = in.u32();
  const std::uint32_t id = in.u32();
  const std::uint32_t count = in.u32();
  if (count > kMaxLeafClients * 16u) return damaged("too many companions");
  std::vector<Companion> all;
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    const auto found = members.find(in.u32());
    const std::uint64_t waited = in.u64();
    if (found != members.end())
      all.push_back({found->second.id, waited < now_ns ? now_ns - waited : 0});
  }
  if (!in.done()) return damaged("companions are damaged");
  const Member* of = IVY_TRY(member(leader));
  engine.set_companions(of->id, id, std::move(all));
  return {};
}

// Watches the key and returns whether it exists now; FORGET is sent when that, or its value,
// changes. Returns nothing if there are too many watches.
std::optional<bool> LeafDialect::State::watch(Space space, const std::string& key,
                                              std::uint64_t now_ns) {
  const auto index = static_cast<std::size_t>(space);
  Replies replies;
  if (index < followed.size() && followed[index].contains(key)) {
    engine.apply(own[index], next_watch++, Check{{key}}, now_ns, replies);
    return std::get<Number>(replies.front().body).value == 1;
  }
  if (index >= followed.size()) return std::nullopt;
  engine.apply(own[index], next_watch++, Watch{key, true, true}, now_ns, replies);
  const auto* present = std::get_if<Compared>(&replies.front().body);
  if (present == nullptr) return std::nullopt;
  followed[index].insert(key);
  return present->current.has_value();
}

// True if the leaf may keep the value: the key must still have it, as it may have changed since the
// engine answered.
bool LeafDialect::State::may_keep(Space space, const std::string& key, const std::string* value,
                                  std::uint64_t now_ns) {
  const std::string* lasting = engine.lasting_value(space, key);
  if (lasting == nullptr || (value != nullptr && *lasting != *value)) return false;
  return watch(space, key, now_ns).has_value();
}

Result<void> LeafDialect::State::follow(const FrameHead& head, PayloadReader& in,
                                        std::uint64_t now_ns, Replies& out) {
  const std::uint8_t space = in.u8();
  std::string key(in.text());
  if (!in.done() || space >= kFollowed.size()) return damaged("a key to follow is damaged");
  engine.count_request();
  Replies replies;
  engine.apply(own[space], next_watch++, Check{{key}}, now_ns, replies);
  const auto* number = std::get_if<Number>(&replies.front().body);
  std::int64_t answer = number == nullptr ? kMissing : number->value;
  if (answer == kMissing && watch(kFollowed[space], key, now_ns)) answer = kMissingAndFollowed;
  Reply& reply = out.emplace_back();
  reply.client = own.front();
  reply.request = head.id;
  reply.body = Number{answer};
  return {};
}

void LeafDialect::State::note_read(std::uint32_t id, std::uint32_t client, Space space,
                                   const Request& request) {
  OpenRead read{space, {}, client};
  if (const auto* get = std::get_if<Get>(&request)) read.keys = {get->key};
  if (const auto* wait = std::get_if<Wait>(&request); wait != nullptr && wait->keys.size() == 1)
    read.keys = wait->keys;
  if (const auto* many = std::get_if<MultiGet>(&request)) read.keys = many->keys;
  if (!read.keys.empty()) reads[id] = std::move(read);
}

Result<void> LeafDialect::State::request(const FrameHead& head, PayloadReader& in,
                                         std::uint64_t now_ns, Replies& out) {
  const std::uint32_t number = in.u32();
  const Member* from = IVY_TRY(member(number));
  Request asked = IVY_TRY(take_request(head.kind, in, now_ns));
  note_read(head.id, number, from->space, asked);
  engine.apply(from->id, head.id, std::move(asked), now_ns, out);
  return {};
}

// Appends to the values of a read a mark for each: whether the leaf may keep it. The reply to a
// wait has no value, so the mark brings it.
void LeafDialect::State::put_marks(const OpenRead& read, const Reply& reply, std::string& payload) {
  if (const auto* value = std::get_if<Value>(&reply.body)) {
    put_u8(payload, may_keep(read.space, read.keys.front(), &value->bytes, now) ? 1 : 0);
  } else if (std::holds_alternative<Done>(reply.body)) {
    const bool keeps = may_keep(read.space, read.keys.front(), nullptr, now);
    put_u8(payload, keeps ? 1 : 0);
    if (keeps) put_text(payload, *engine.lasting_value(read.space, read.keys.front()));
  } else if (const auto* values = std::get_if<Values>(&reply.body)) {
    for (std::size_t i = 0; i < values->bytes.size() && i < read.keys.size(); ++i)
      put_u8(payload, may_keep(read.space, read.keys[i], &values->bytes[i], now) ? 1 : 0);
  }
}

void LeafDialect::reply(const Reply& reply, std::string& bytes) {
  State& state = *state_;
  std::string payload;
  if (const auto* change = std::get_if<Changed>(&reply.body)) {
    if (const std::optional<Space> space = state.own_space(reply.client)) {
      state.followed[static_cast<std::size_t>(*space)].erase(change->key);
      put_u8(payload, static_cast<std::uint8_t>(*space));
      put_text(payload, change->key);
      return append_frame(bytes, {kForgetFrame, 0}, payload);
    }
  }
  const auto id = static_cast<std::uint32_t>(reply.request);
  const auto* error = std::get_if<Error>(&reply.body);
  put_reply(payload, reply);
  if (const auto read = state.reads.find(id); read != state.reads.end()) {
    if (error == nullptr) state.put_marks(read->second, reply, payload);
    state.reads.erase(read);
  }
  append_frame(bytes,
               {error == nullptr ? std::uint8_t{0} : static_cast<std::uint8_t>(error->code), id},
               payload);
}

}  // namespace ivy::store
