#include "rendezvous/dialects/leaf.h"

#include <algorithm>

#include "rendezvous/dialects/codec.h"

namespace ivy::store {
namespace {

Error damaged_reply() { return Error{Code::kDataLoss, "the store: a damaged reply"}; }

std::string client_payload(ClientId client) {
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(client));
  return payload;
}

}  // namespace

bool Leaf::answers(Check& check, Asking& here) {
  bool all = true;
  for (const std::string& key : check.keys) {
    const KeptKeys::Kept* found = kept_.find(name_of(here.space, key));
    if (found != nullptr && !found->value) return here.answer(Number{0});
    all &= found != nullptr;
  }
  if (all) return here.answer(Number{1});
  if (check.keys.size() != 1) return false;
  const std::string name = name_of(here.space, check.keys.front());
  if (kept_.is_being_written(name) || kept_.misses(name) < limits_.steady_checks) return false;
  // A FOLLOW of this key is under way: its answer serves this check, too.
  const auto [askers, is_first] = following_.try_emplace(name);
  if (!is_first) {
    askers->second.push_back(here.asker);
    return true;
  }
  UpRequest note;
  note.asker = here.asker;
  note.space = here.space;
  note.checks = check.keys.front();
  note.is_follow = true;
  own_[here.asker] = upstream_.follow(std::move(note));
  return true;
}

bool Leaf::answers(Get& get, Asking& here) {
  const std::string name = name_of(here.space, get.key);
  if (const std::string* value = kept_.value(name)) return here.answer(Value{*value});
  // An oversized key goes to the store, which refuses it.
  if (get.key.size() > kMaxKeyBytes || kept_.is_being_written(name)) return false;
  using Question = SharedRequests::Question;
  shared_.ask(get.wait_until_ns ? Question::kValue : Question::kValueNow, here.space, get.key,
              {here.asker, get.wait_until_ns.value_or(kNever), here.now_ns});
  return true;
}

bool Leaf::answers(Wait& wait, Asking& here) {
  const auto is_here = [&](const std::string& key) {
    return kept_.value(name_of(here.space, key)) != nullptr;
  };
  if (std::all_of(wait.keys.begin(), wait.keys.end(), is_here)) return here.answer(Done{});
  if (wait.keys.size() != 1 || wait.keys.front().size() > kMaxKeyBytes ||
      kept_.is_being_written(name_of(here.space, wait.keys.front())))
    return false;
  shared_.ask(SharedRequests::Question::kExists, here.space, wait.keys.front(),
              {here.asker, wait.deadline_ns, here.now_ns});
  return true;
}

bool Leaf::answers(MultiGet& get, Asking& here) {
  Values values;
  std::size_t bytes = 0;
  for (const std::string& key : get.keys) {
    const std::string* value = kept_.value(name_of(here.space, key));
    if (value == nullptr) return false;
    bytes += value->size() + kReplyTextBytes;
    if (bytes > kMaxReplyBytes) return false;
    values.bytes.push_back(*value);
  }
  return here.answer(std::move(values));
}

// Cancels a shared request here. The store cancels one that was sent by itself, as its answer may
// be under way.
bool Leaf::answers(Cancel& cancel, Asking& here) {
  std::vector<RequestId> gone_up;
  cancel.or_these.push_back(cancel.request);
  for (const RequestId each : cancel.or_these) {
    const Asker asker{here.asker.client, each};
    if (shared_.drop(asker, false, here.now_ns)) {
      answer_to(asker.client, each, Error{Code::kCancelled, "cancelled by its client"}, here.out);
    } else if (const auto found = own_.find(asker); found != own_.end()) {
      gone_up.push_back(found->second);
    }
  }
  cancel.request = 0;
  cancel.or_these = std::move(gone_up);
  return cancel.or_these.empty() && here.answer(Done{});
}

void Leaf::forward(const Request& body, const Asking& here) {
  UpRequest note;
  note.asker = here.asker;
  note.space = here.space;
  note.reads = keys_shown(body);
  note.stays_open = std::holds_alternative<Watch>(body);
  if (command_of(body).writes) {
    for (const std::string& key : NamedKeys(body).all())
      note.writes.push_back(name_of(here.space, key));
    for (const std::string& name : note.writes) kept_.begin_write(name);
  }
  const auto* check = std::get_if<Check>(&body);
  if (check != nullptr && check->keys.size() == 1) note.checks = check->keys.front();
  own_[here.asker] = upstream_.request(body, std::move(note), here.now_ns);
}

Result<void> Leaf::take(const WireFrame& frame, std::uint64_t now_ns, Replies& out) {
  PayloadReader in(frame.payload);
  if (frame.head.kind == kForgetFrame) {
    const auto space = static_cast<Space>(in.u8());
    const std::string key(in.text());
    if (!in.done()) return Error{Code::kDataLoss, "the store: a damaged frame"};
    kept_.forget(name_of(space, key));
    return {};
  }
  ReplyBody body = IVY_TRY(take_leaf_reply(frame.head.kind, in));
  UpRequest* const found = upstream_.find(frame.head.id);
  if (found == nullptr) return {};
  const bool is_kept = IVY_TRY(take_marks(*found, body, in));
  if (!in.done()) return damaged_reply();
  const Asker asker = found->asker;
  if (found->stays_open && !std::holds_alternative<Error>(body)) {
    answer_to(asker.client, asker.request, std::move(body), out);
    return {};
  }
  const UpRequest asked = std::move(*found);
  upstream_.erase(frame.head.id);
  end_writes(asked);
  if (asked.is_silent) return {};
  if (!asked.shared.empty()) {
    shared_.answer(asked, {body, is_kept}, now_ns, out);
    return {};
  }
  own_.erase(asker);
  if (!asked.checks.empty()) end_check(asked, body, now_ns, out);
  answer_to(asker.client, asker.request, std::move(body), out);
  return {};
}

// Keeps the values that may be kept. Returns true if the one value of a shared request is kept.
Result<bool> Leaf::take_marks(const UpRequest& asked, const ReplyBody& body, PayloadReader& in) {
  if (asked.reads.empty()) return false;
  const std::string first = name_of(asked.space, asked.reads.front());
  const auto* value = std::get_if<Value>(&body);
  if (value != nullptr || std::holds_alternative<Done>(body)) {
    const bool may_keep = in.u8() == 1;
    std::string bytes;
    if (may_keep) bytes = value != nullptr ? value->bytes : std::string(in.text());
    if (!in.ok()) return damaged_reply();
    if (may_keep) kept_.keep(first, std::move(bytes));
    return may_keep;
  }
  if (const auto* values = std::get_if<Values>(&body)) {
    if (values->bytes.size() != asked.reads.size()) return damaged_reply();
    for (std::size_t i = 0; i < values->bytes.size(); ++i)
      if (in.u8() == 1) kept_.keep(name_of(asked.space, asked.reads[i]), values->bytes[i]);
  }
  return false;
}

// Learns from the answer to a check of one key, which a FOLLOW may have brought.
void Leaf::end_check(const UpRequest& asked, ReplyBody& body, std::uint64_t now_ns, Replies& out) {
  const std::string name = name_of(asked.space, asked.checks);
  const auto* number = std::get_if<Number>(&body);
  const std::int64_t found = number == nullptr ? 1 : number->value;
  std::vector<Asker> others;
  if (const auto more = following_.find(name); asked.is_follow && more != following_.end()) {
    others = std::move(more->second);
    following_.erase(more);
  }
  if (found == kMissingAndFollowed) {
    kept_.keep(name, std::nullopt);
    body = Number{0};
    for (const Asker& other : others) answer_to(other.client, other.request, Number{0}, out);
    return;
  }
  if (found == kMissing) {
    kept_.count_miss(name);
  } else {
    kept_.end_misses(name);
  }
  for (const Asker& other : others)
    forward(Check{{asked.checks}}, Asking{other, asked.space, now_ns, out});
}

void Leaf::end_writes(const UpRequest& asked) {
  for (const std::string& name : asked.writes) kept_.end_write(name);
}

Result<ClientId> Leaf::join(ClientInfo info, std::uint64_t) {
  if (info.generation != generation_) {
    return Error{Code::kFailedPrecondition, "generation " + std::to_string(info.generation) +
                                                " is not served: the store is at " +
                                                std::to_string(generation_)};
  }
  const ClientId id = ++last_client_;
  clients_[id] = info.space;
  std::string payload = client_payload(id);
  put_u8(payload, static_cast<std::uint8_t>(info.space));
  put_u8(payload, info.rank ? 1 : 0);
  put_u32(payload, info.rank.value_or(0));
  put_u32(payload, info.pid);
  put_u64(payload, info.session);
  put_text(payload, info.address);
  upstream_.tell(LeafOp::kJoin, payload);
  return id;
}

void Leaf::leave(ClientId client) {
  if (clients_.erase(client) == 0) return;
  upstream_.tell(LeafOp::kLeave, client_payload(client));
  for (auto& [name, others] : following_)
    std::erase_if(others, [&](const Asker& other) { return other.client == client; });
  shared_.drop_client(client, now_ns_);
  for (auto at = own_.lower_bound({client, 0}); at != own_.end() && at->first.client == client;) {
    if (const UpRequest* asked = upstream_.find(at->second); asked != nullptr) {
      end_writes(*asked);
      // Other clients may share the answer to a FOLLOW.
      if (!asked->is_follow) upstream_.erase(at->second);
    }
    at = own_.erase(at);
  }
}

void Leaf::describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t>) {
  std::string payload = client_payload(client);
  put_u32(payload, pid);
  upstream_.tell(LeafOp::kDescribe, payload);
}

void Leaf::apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
                 Replies& out) {
  asked_ += 1;
  now_ns_ = now_ns;
  Asking here{{client, request}, clients_.at(client), now_ns, out};
  if (!std::visit([&](auto& kind) { return answers(kind, here); }, body)) forward(body, here);
}

Result<void> Leaf::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  now_ns_ = now_ns;
  decoder_.feed(bytes);
  while (true) {
    const std::optional<WireFrame> frame = IVY_TRY(decoder_.next());
    if (!frame) return {};
    IVY_CHECK(take(*frame, now_ns, out));
  }
}

std::uint64_t Leaf::advance(std::uint64_t now_ns, Replies& out) {
  now_ns_ = now_ns;
  const std::uint64_t next_ns = shared_.advance(now_ns, out);
  if (now_ns >= next_told_ns_) {
    next_told_ns_ = now_ns + limits_.share_told_ns;
    shared_.tell_companions(limits_.share_told_ns, now_ns);
  }
  return next_ns;
}

void Leaf::end_watch(ClientId client, RequestId request) {
  const auto found = own_.find({client, request});
  if (found == own_.end()) return;
  upstream_.cancel(client, found->second);
  own_.erase(found);
}

void Leaf::begin_generation(std::uint32_t generation, Replies& out) {
  const Error ended{Code::kAborted, "generation " + std::to_string(generation_) + " has ended"};
  for (const auto& [asker, id] : own_) answer_to(asker.client, asker.request, ended, out);
  shared_.fail(ended, out);
  own_.clear();
  following_.clear();
  upstream_.clear();
  kept_.clear();
  generation_ = generation;
}

}  // namespace ivy::store
