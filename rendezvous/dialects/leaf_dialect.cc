#include "rendezvous/dialects/leaf_dialect.h"

#include "rendezvous/dialects/codec.h"

namespace ivy::store {
namespace {

Error bad_leaf(const std::string& what) {
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

LeafDialect::~LeafDialect() {
  for (const auto& [number, member] : members_) engine_.leave(member.id);
  for (const ClientId id : own_) engine_.leave(id);
}

Result<std::unique_ptr<LeafDialect>> LeafDialect::make(Engine& engine, std::uint32_t generation,
                                                       const std::string& address,
                                                       std::uint64_t now_ns) {
  std::unique_ptr<LeafDialect> made(new LeafDialect(engine, generation, address));
  for (std::size_t i = 0; i < kFollowedSpaces; ++i) {
    ClientInfo info;
    info.space = static_cast<Space>(i);
    info.generation = generation;
    info.address = address;
    info.is_leaf = true;
    made->own_[i] = IVY_TRY(engine.join(std::move(info), now_ns));
    made->joined_.push_back(made->own_[i]);
  }
  return made;
}

Result<void> LeafDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  if (!bytes.empty()) decoder_.feed(bytes);
  turn_over_ = false;
  now_ns_ = now_ns;
  Turn turn(out);
  while (!turn.over()) {
    const std::optional<WireFrame> frame = IVY_TRY(decoder_.next());
    if (!frame) return {};
    IVY_CHECK(serve(*frame, out));
    turn.count();
  }
  turn_over_ = true;
  return {};
}

Result<void> LeafDialect::serve(const WireFrame& frame, Replies& out) {
  PayloadReader in(frame.payload);
  switch (static_cast<LeafOp>(frame.head.kind)) {
    case LeafOp::kJoin:
      return join(in);
    case LeafOp::kLeave:
      return leave(in);
    case LeafOp::kDescribe:
      return describe(in);
    case LeafOp::kCompanions:
      return set_companions(in);
    case LeafOp::kFollow:
      return follow(frame.head.id, in, out);
    default:
      return request(frame.head, in, out);
  }
}

Result<const LeafDialect::Member*> LeafDialect::member(std::uint32_t number) const {
  const auto found = members_.find(number);
  if (found == members_.end()) return bad_leaf("no client " + std::to_string(number));
  return &found->second;
}

Result<void> LeafDialect::join(PayloadReader& in) {
  const std::uint32_t number = in.u32();
  ClientInfo info;
  const std::uint8_t space = in.u8();
  const bool has_rank = in.u8() != 0;
  const std::uint32_t rank = in.u32();
  info.pid = in.u32();
  info.session = in.u64();
  info.address = address_on_host(address_, std::string(in.text()));
  if (!in.done() || space >= kSpaces) return bad_leaf("a client that joins is damaged");
  if (members_.contains(number)) return bad_leaf("client " + std::to_string(number) + " is there");
  if (members_.size() >= kMaxLeafClients)
    return bad_leaf("more than " + std::to_string(kMaxLeafClients) + " clients");
  info.space = static_cast<Space>(space);
  info.generation = generation_;
  if (has_rank) info.rank = rank;
  const ClientId id = IVY_TRY(engine_.join(std::move(info), now_ns_));
  members_.emplace(number, Member{id, static_cast<Space>(space)});
  joined_.push_back(id);
  return {};
}

Result<void> LeafDialect::leave(PayloadReader& in) {
  const std::uint32_t number = in.u32();
  const Member* gone = IVY_TRY(member(number));
  if (!in.done()) return bad_leaf("a client that leaves is damaged");
  engine_.leave(gone->id);
  left_.push_back(gone->id);
  members_.erase(number);
  std::erase_if(reads_, [&](const auto& read) { return read.second.client == number; });
  return {};
}

Result<void> LeafDialect::describe(PayloadReader& in) {
  const Member* described = IVY_TRY(member(in.u32()));
  const std::uint32_t pid = in.u32();
  if (!in.done()) return bad_leaf("a description is damaged");
  engine_.describe(described->id, pid, std::nullopt);
  return {};
}

Result<void> LeafDialect::set_companions(PayloadReader& in) {
  const std::uint32_t leader = in.u32();
  const std::uint32_t id = in.u32();
  const std::uint32_t count = in.u32();
  if (count > kMaxLeafClients * 16u) return bad_leaf("too many companions");
  std::vector<Companion> all;
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    const auto found = members_.find(in.u32());
    const std::uint64_t waited = in.u64();
    if (found != members_.end())
      all.push_back({found->second.id, waited < now_ns_ ? now_ns_ - waited : 0});
  }
  if (!in.done()) return bad_leaf("companions are damaged");
  engine_.set_companions(IVY_TRY(member(leader))->id, id, std::move(all));
  return {};
}

// Asks the engine in the name of the leaf itself.
ReplyBody LeafDialect::ask(Space space, Request request) {
  Replies replies;
  engine_.apply(own_[static_cast<std::size_t>(space)], next_own_++, std::move(request), now_ns_,
                replies);
  return std::move(replies.front().body);
}

// Watches the key and returns whether it exists now; FORGET is sent when that, or its value,
// changes. Returns nothing if there are too many watches.
std::optional<bool> LeafDialect::watch(Space space, const std::string& key) {
  const auto index = static_cast<std::size_t>(space);
  if (index >= kFollowedSpaces) return std::nullopt;
  if (followed_[index].contains(key)) return std::get<Number>(ask(space, Check{{key}})).value == 1;
  const ReplyBody answer = ask(space, Watch{key, true, true});
  const auto* present = std::get_if<Compared>(&answer);
  if (present == nullptr) return std::nullopt;
  followed_[index].insert(key);
  return present->current.has_value();
}

// True if the leaf may keep the value: the key must still have it, as it may have changed since the
// engine answered.
bool LeafDialect::may_keep(Space space, const std::string& key, const std::string* value) {
  const std::string* lasting = engine_.lasting_value(space, key);
  if (lasting == nullptr || (value != nullptr && *lasting != *value)) return false;
  return watch(space, key).has_value();
}

Result<void> LeafDialect::follow(std::uint32_t id, PayloadReader& in, Replies& out) {
  const std::uint8_t index = in.u8();
  std::string key(in.text());
  if (!in.done() || index >= kFollowedSpaces) return bad_leaf("a key to follow is damaged");
  const auto space = static_cast<Space>(index);
  engine_.count_request();
  const ReplyBody answer = ask(space, Check{{key}});
  const auto* number = std::get_if<Number>(&answer);
  std::int64_t found = number == nullptr ? kMissing : number->value;
  if (found == kMissing && watch(space, key)) found = kMissingAndFollowed;
  answer_to(own_.front(), id, Number{found}, out);
  return {};
}

Result<void> LeafDialect::request(const FrameHead& head, PayloadReader& in, Replies& out) {
  const std::uint32_t number = in.u32();
  const Member* from = IVY_TRY(member(number));
  const std::size_t index =
      std::size_t{head.kind} - static_cast<std::size_t>(LeafOp::kFirstRequest);
  Request asked = IVY_TRY(take_leaf_request(index, in, now_ns_));
  std::vector<std::string> keys = keys_shown(asked);
  if (!keys.empty()) reads_[head.id] = {from->space, std::move(keys), number};
  engine_.apply(from->id, head.id, std::move(asked), now_ns_, out);
  return {};
}

// Appends to the values of a read a mark for each: whether the leaf may keep it. The reply to a
// wait has no value, so the mark brings it.
void LeafDialect::put_marks(const OpenRead& read, const Reply& reply, std::string& payload) {
  if (const auto* value = std::get_if<Value>(&reply.body)) {
    put_u8(payload, may_keep(read.space, read.keys.front(), &value->bytes) ? 1 : 0);
  } else if (std::holds_alternative<Done>(reply.body)) {
    const bool keeps = may_keep(read.space, read.keys.front(), nullptr);
    put_u8(payload, keeps ? 1 : 0);
    if (keeps) put_text(payload, *engine_.lasting_value(read.space, read.keys.front()));
  } else if (const auto* values = std::get_if<Values>(&reply.body)) {
    for (std::size_t i = 0; i < values->bytes.size() && i < read.keys.size(); ++i)
      put_u8(payload, may_keep(read.space, read.keys[i], &values->bytes[i]) ? 1 : 0);
  }
}

void LeafDialect::reply(const Reply& reply, std::string& bytes) {
  std::string payload;
  const auto* change = std::get_if<Changed>(&reply.body);
  for (std::size_t i = 0; change != nullptr && i < own_.size(); ++i) {
    if (own_[i] != reply.client) continue;
    followed_[i].erase(change->key);
    put_u8(payload, static_cast<std::uint8_t>(i));
    put_text(payload, change->key);
    return append_frame(bytes, {kForgetFrame, 0}, payload);
  }
  const auto id = static_cast<std::uint32_t>(reply.request);
  const auto* error = std::get_if<Error>(&reply.body);
  put_leaf_reply(payload, reply.body);
  if (const auto read = reads_.find(id); read != reads_.end()) {
    if (error == nullptr) put_marks(read->second, reply, payload);
    reads_.erase(read);
  }
  const int status = error == nullptr ? 0 : static_cast<int>(error->code);
  append_frame(bytes, {static_cast<std::uint8_t>(status), id}, payload);
}

}  // namespace ivy::store
