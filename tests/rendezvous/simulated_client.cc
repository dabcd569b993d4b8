// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/simulated_client.h"

#include <algorithm>
#include <set>

#include "tests/rendezvous/torch_script.h"

namespace ivy::test {
namespace {

using store::Op;
using store::RequestId;

constexpr std::uint64_t kMilli = 1'000'000;
constexpr std::size_t kObjects = 3;
constexpr std::size_t kPerObject = 40;  // The cost of the search grows with them.
constexpr std::uint32_t kMembers = 3;

bool is_wait(Kind kind) { return kind == Kind::kWait || kind == Kind::kWaitGet; }

// torch's protocol has no answer to these.
bool is_silent(Kind kind) {
  return kind == Kind::kSet || kind == Kind::kAppend || kind == Kind::kMultiSet ||
         kind == Kind::kPush;
}

bool only_reads(Kind kind) {
  return kind == Kind::kGet || kind == Kind::kWaitGet || kind == Kind::kWait ||
         kind == Kind::kCheck || kind == Kind::kMultiGet || kind == Kind::kLength;
}

bool is_numbered(Kind kind) {
  return kind == Kind::kSet || kind == Kind::kSetOnce || kind == Kind::kMultiSet ||
         kind == Kind::kDelete;
}

std::uint64_t read_number(const std::string& bytes, std::size_t at) {
  return store::PayloadReader(std::string_view(bytes).substr(at)).u64();
}

}  // namespace

std::string History::wrong_round() const {
  for (const auto& [where, seen] : rounds) {
    const std::string name =
        std::to_string(where.second) + " of generation " + std::to_string(where.first);
    std::set<std::uint32_t> members;
    std::uint64_t last_invoked = 0;
    std::uint64_t first_returned = kOpen;
    for (const Round& round : seen) {
      last_invoked = std::max(last_invoked, round.invoked);
      first_returned = std::min(first_returned, round.returned);
      members.insert(round.member);
    }
    if (last_invoked > first_returned) return "round " + name + " released a member too early";
    // An arrival without an answer may have been counted, unless its client had left by then.
    const auto lost = given_up.find(where.first);
    if (lost != given_up.end()) {
      for (const Round& arrival : lost->second)
        if (arrival.invoked <= first_returned && arrival.returned >= last_invoked)
          members.insert(arrival.member);
    }
    if (members.size() != kMembers) return "round " + name + " did not wait for all members";
  }
  return {};
}

std::vector<std::string> SimulatedClient::all_keys() {
  std::vector<std::string> keys;
  for (std::size_t object = 0; object < kObjects; ++object)
    for (std::size_t index = 0; index < 4; ++index)
      keys.push_back("o" + std::to_string(object) + "/" + std::to_string(index));
  return keys;
}

SimulatedClient::SimulatedClient(Network& network, Protocol protocol, std::uint32_t member)
    : network_(network),
      protocol_(protocol),
      member_(member),
      generation_(network.engine().generation()),
      session_(protocol == Protocol::kNative ? 1 + network.pick(~std::uint64_t{0} - 1) : 0) {
  if (protocol == Protocol::kEngine) {
    store::ClientInfo info;
    info.generation = generation_;
    info.rank = member;
    engine_client_ = *network.engine().join(info, network.now());
    network.joined(engine_client_, *this);
  } else if (protocol == Protocol::kNative) {
    dial();
  } else {
    torch_ = std::make_unique<store::TorchDialect>(network.engine(), generation_, "10.0.0.1");
    send(opcode(0) + word32(0x3C85F7CE), store::Check{}, 0);
  }
}

SimulatedClient::~SimulatedClient() = default;

std::string SimulatedClient::key(std::uint32_t object, std::size_t index) const {
  return "o" + std::to_string(object) + "/" + std::to_string(index);
}

// ---- Requests
// ------------------------------------------------------------------------------------

Operation* SimulatedClient::make_operation(std::uint32_t& object, bool& is_barrier) {
  is_barrier = protocol_ != Protocol::kTorch && network_.pick(12) == 0;
  object = static_cast<std::uint32_t>(network_.pick(kObjects));
  if (is_barrier) return nullptr;
  const std::string where = std::to_string(generation_) +
                            (protocol_ == Protocol::kTorch ? " torch " : " native ") +
                            std::to_string(object);
  std::list<Operation>& all = network_.history().objects[where];
  if (all.size() >= kPerObject) return nullptr;
  Operation& operation = all.emplace_back();
  fill(operation);
  operation.is_torch = protocol_ == Protocol::kTorch;
  operation.invoked = network_.now();
  return &operation;
}

void SimulatedClient::fill(Operation& operation) {
  do {
    operation.kind = static_cast<Kind>(network_.pick(15));
    // Skips requests that torch's protocol lacks, and its multi-get, which closes the connection if
    // a key is missing.
  } while (protocol_ == Protocol::kTorch &&
           (operation.kind == Kind::kSetOnce || operation.kind == Kind::kWaitGet ||
            operation.kind == Kind::kMultiGet));
  operation.keys = {network_.pick(3)};
  const bool many = operation.kind == Kind::kMultiGet || operation.kind == Kind::kMultiSet ||
                    operation.kind == Kind::kWait || operation.kind == Kind::kCheck;
  if (many && network_.pick(3) > 0) operation.keys.push_back((operation.keys[0] + 1) % 3);
  const bool by_existence = operation.kind == Kind::kWait || operation.kind == Kind::kCheck;
  if (by_existence && network_.pick(4) == 0) operation.keys.push_back(3);
  // Stores a number now and then, so that an add can succeed.
  operation.value = std::to_string(network_.pick(1'000'000));
  if (operation.kind == Kind::kSet && network_.pick(2) == 0) operation.value += "x";
  operation.delta = static_cast<std::int64_t>(network_.pick(20)) - 10;
  if (operation.kind == Kind::kAdd && protocol_ == Protocol::kTorch) operation.keys = {2};
  // In torch's protocol an add to a text closes the connection, so key 2 of torch's objects holds
  // only numbers.
  const bool may_be_text = operation.kind == Kind::kSet || operation.kind == Kind::kAppend ||
                           operation.kind == Kind::kCompareSet || operation.kind == Kind::kMultiSet;
  if (may_be_text && protocol_ == Protocol::kTorch) operation.keys = {network_.pick(2)};
  if (operation.kind == Kind::kCompareSet && network_.pick(3) > 0) {
    operation.expected = std::to_string(network_.pick(4));
  }
  if (operation.kind == Kind::kSet && network_.pick(3) == 0)
    operation.value = std::to_string(network_.pick(4));
}

void SimulatedClient::send_request() {
  if (closed_) return;
  std::uint32_t object = 0;
  bool is_barrier = false;
  Operation* operation = make_operation(object, is_barrier);
  if (operation == nullptr && !is_barrier) return;
  // A torch client has one open request and sends no other until that is answered.
  const auto loud = [](const auto& entry) {
    return entry.second.is_cancel || !is_silent(entry.second.operation->kind);
  };
  if (protocol_ == Protocol::kTorch && std::any_of(pending_.begin(), pending_.end(), loud)) {
    operation->end = Operation::End::kNothing;
    return;
  }
  const RequestId id = next_request_++;
  Pending& pending = pending_[id];
  pending = {operation, is_barrier, false, network_.now(), object, 0};
  if (protocol_ == Protocol::kNative && operation != nullptr && is_numbered(operation->kind))
    pending.number = next_number_++;
  if (protocol_ == Protocol::kTorch) {
    send_to_torch(*operation, object);
  } else if (!is_barrier) {
    const std::string frame = protocol_ == Protocol::kNative
                                  ? frame_of(pending, static_cast<std::uint32_t>(id))
                                  : std::string();
    send(frame, request_of(*operation, object), id);
  } else {
    const store::Barrier barrier{"meeting", kMembers, member_, ++network_.history().barrier_calls,
                                 network_.now() + (1 + network_.pick(200)) * kMilli};
    std::string payload;
    store::put_u64(payload, (barrier.deadline_ns - network_.now()) / kMilli);
    store::put_text(payload, barrier.name);
    store::put_u32(payload, barrier.size);
    store::put_u32(payload, barrier.member);
    store::put_u64(payload, barrier.call);
    std::string frame;
    store::append_frame(
        frame, {static_cast<std::uint8_t>(Op::kBarrier), static_cast<std::uint32_t>(id)}, payload);
    send(frame, barrier, id);
  }
}

store::Request SimulatedClient::request_of(const Operation& operation, std::uint32_t object) {
  const std::string first = key(object, operation.keys[0]);
  const std::string queue = key(object, 3);
  std::vector<std::string> names;
  for (const std::size_t index : operation.keys) names.push_back(key(object, index));
  const std::uint64_t deadline =
      network_.pick(3) == 0 ? store::kNever : network_.now() + network_.pick(60) * kMilli;
  switch (operation.kind) {
    case Kind::kSet:
      return store::Set{first, operation.value, false};
    case Kind::kSetOnce:
      return store::Set{first, operation.value, true};
    case Kind::kGet:
      return store::Get{first, std::nullopt};
    case Kind::kWaitGet:
      return store::Get{first, deadline};
    case Kind::kWait:
      return store::Wait{names, deadline};
    case Kind::kCheck:
      return store::Check{names};
    case Kind::kAdd:
      return store::Add{first, operation.delta};
    case Kind::kCompareSet:
      return store::CompareSet{first, operation.expected, operation.value};
    case Kind::kAppend:
      return store::Append{first, operation.value};
    case Kind::kDelete:
      return store::Delete{first};
    case Kind::kMultiGet:
      return store::MultiGet{names};
    case Kind::kMultiSet: {
      store::MultiSet set;
      for (std::size_t i = 0; i < names.size(); ++i)
        set.entries.emplace_back(names[i], operation.value + "." + std::to_string(i));
      return set;
    }
    case Kind::kPush:
      return store::QueuePush{queue, operation.value};
    case Kind::kPop:
      return store::QueuePop{queue, deadline};
    case Kind::kLength:
      return store::QueueLength{queue};
  }
  return store::Check{};
}

std::string SimulatedClient::frame_of(const Pending& pending, std::uint32_t id, bool again) {
  const Operation& operation = *pending.operation;
  const std::uint32_t object = pending.object;
  static constexpr std::array<Op, 15> kOps = {
      Op::kSet,      Op::kSetOnce,  Op::kGet,        Op::kWaitGet,  Op::kWait,
      Op::kCheck,    Op::kAdd,      Op::kCompareSet, Op::kAppend,   Op::kDelete,
      Op::kMultiGet, Op::kMultiSet, Op::kQueuePush,  Op::kQueuePop, Op::kQueueLength};
  const Op op = kOps[static_cast<std::size_t>(operation.kind)];
  auto kind = static_cast<std::uint8_t>(op);
  std::string payload;
  if (pending.number != 0) {
    kind |= store::kNumberedOp;
    std::uint64_t lowest = pending.number;
    for (const auto& [other_id, other] : pending_)
      if (other.number != 0) lowest = std::min(lowest, other.number);
    store::put_u64(payload, pending.number);
    store::put_u64(payload, lowest);
    store::put_u8(payload, again ? 1 : 0);
  }
  if (op == Op::kWaitGet || op == Op::kWait || op == Op::kQueuePop)
    store::put_u64(payload, network_.pick(3) == 0 ? store::kForeverMs : network_.pick(60));
  const bool is_list =
      op == Op::kWait || op == Op::kCheck || op == Op::kMultiGet || op == Op::kMultiSet;
  if (is_list) {
    store::put_u32(payload, static_cast<std::uint32_t>(operation.keys.size()));
    for (std::size_t i = 0; i < operation.keys.size(); ++i) {
      store::put_text(payload, key(object, operation.keys[i]));
      if (op == Op::kMultiSet) store::put_text(payload, operation.value + "." + std::to_string(i));
    }
  } else {
    const bool is_queue = op == Op::kQueuePush || op == Op::kQueuePop || op == Op::kQueueLength;
    store::put_text(payload, key(object, is_queue ? 3 : operation.keys[0]));
  }
  if (op == Op::kAdd) store::put_u64(payload, static_cast<std::uint64_t>(operation.delta));
  if (op == Op::kCompareSet) {
    store::put_u8(payload, operation.expected ? 1 : 0);
    store::put_text(payload, operation.expected.value_or(""));
  }
  if (op == Op::kSet || op == Op::kSetOnce || op == Op::kCompareSet || op == Op::kAppend ||
      op == Op::kQueuePush) {
    store::put_text(payload, operation.value);
  }
  std::string frame;
  store::append_frame(frame, {kind, id}, payload);
  return frame;
}

void SimulatedClient::send_to_torch(Operation& operation, std::uint32_t object) {
  static constexpr std::array<int, 15> kOpcodes = {1, -1, 3,  -1, 6,  5,  4, 2,
                                                   9, 8,  -1, 11, 14, 15, 16};
  const auto kind = static_cast<std::size_t>(operation.kind);
  std::string bytes = opcode(kOpcodes[kind]);
  std::vector<std::string> names;
  for (const std::size_t index : operation.keys) names.push_back(key(object, index));
  const std::string& first = names[0];
  switch (operation.kind) {
    case Kind::kWait:
    case Kind::kCheck:
      bytes += keys(names);
      break;
    case Kind::kMultiSet:
      bytes += number(static_cast<std::int64_t>(names.size()));
      for (std::size_t i = 0; i < names.size(); ++i)
        bytes += text(names[i]) + text(operation.value + "." + std::to_string(i));
      break;
    case Kind::kPush:
      bytes += text(key(object, 3)) + text(operation.value);
      break;
    case Kind::kPop:
    case Kind::kLength:
      bytes += text(key(object, 3));
      break;
    case Kind::kAdd:
      bytes += text(first) + number(operation.delta);
      break;
    case Kind::kCompareSet:
      bytes += text(first) + text(operation.expected.value_or("")) + text(operation.value);
      break;
    case Kind::kSet:
    case Kind::kAppend:
      bytes += text(first) + text(operation.value);
      break;
    default:
      bytes += text(first);
      break;
  }
  send(bytes, store::Check{}, 0);
}

void SimulatedClient::cancel() {
  if (closed_ || pending_.empty()) return;
  if (protocol_ == Protocol::kTorch) {
    // A torch client may cancel only while it waits, and only once.
    const Pending& last = pending_.rbegin()->second;
    if (last.is_cancel || !is_wait(last.operation->kind)) return;
    pending_[next_request_++] = {nullptr, false, true, network_.now(), 0, 0};
    return send(opcode(12), store::Check{}, 0);
  }
  const RequestId target = 1 + network_.pick(next_request_ - 1);
  const RequestId id = next_request_++;
  pending_[id] = {nullptr, false, true, network_.now(), 0, 0};
  std::string payload;
  store::put_u32(payload, static_cast<std::uint32_t>(target));
  std::string frame;
  store::append_frame(
      frame, {static_cast<std::uint8_t>(Op::kCancel), static_cast<std::uint32_t>(id)}, payload);
  send(frame, store::Cancel{target}, id);
}

// Delivers the request after a delay, in pieces that are cut at random.
void SimulatedClient::send(std::string bytes, store::Request request, RequestId id) {
  const auto delay = [this] {
    next_arrival_ns_ = std::max(next_arrival_ns_, network_.now() + network_.pick(5) * kMilli / 2);
    return next_arrival_ns_;
  };
  if (protocol_ == Protocol::kEngine) {
    network_.later(delay(), [this, id, request = std::move(request)] {
      if (closed_) return;
      store::Replies replies;
      network_.engine().apply(engine_client_, id, request, network_.now(), replies);
      network_.deliver(replies);
    });
    return;
  }
  while (!bytes.empty()) {
    const std::size_t piece =
        network_.pick(2) == 0 ? bytes.size() : 1 + network_.pick(bytes.size());
    network_.later(delay(), [this, line = line_, part = bytes.substr(0, piece)] {
      if (line == nullptr) return arrive(part);
      if (line->late_ns == 0) return arrive(*line, part);
      network_.later(network_.now() + line->late_ns, [this, line, part] { arrive(*line, part); });
    });
    bytes.erase(0, piece);
  }
}

void SimulatedClient::arrive(const std::string& bytes) {
  if (closed_) return;
  store::Replies replies;
  const Result<void> taken = torch_->receive(bytes, network_.now(), replies);
  // A torch client of the previous generation is disconnected.
  if (!taken.ok() && generation_ == network_.engine().generation())
    network_.fail("torch: " + taken.error().message);
  if (torch_->client() != 0) network_.joined(torch_->client(), *this);
  network_.deliver(replies);
}

void SimulatedClient::arrive(Line& line, const std::string& bytes) {
  if (line.dialect == nullptr) return;
  store::Replies replies;
  const Result<void> taken = line.dialect->receive(bytes, network_.now(), replies);
  if (!taken.ok()) network_.fail("native: " + taken.error().message);
  network_.deliver(replies);
}

void SimulatedClient::dial() {
  store::ClientInfo info;
  info.generation = generation_;
  info.rank = member_;
  info.session = session_;
  line_ = std::make_shared<Line>();
  line_->dialect =
      store::NativeDialect::make(network_.engine(), std::move(info), network_.now()).value();
  network_.joined(line_->dialect->client(), *this);
}

void SimulatedClient::end(Line& line) {
  if (line.dialect == nullptr) return;
  network_.left(line.dialect->client());
  line.dialect.reset();
}

bool SimulatedClient::may_dial_again() const {
  return line_ != nullptr && !closed_ &&
         std::all_of(pending_.begin(), pending_.end(), [](const auto& one) {
           const Operation* operation = one.second.operation;
           return operation == nullptr || one.second.number != 0 || only_reads(operation->kind);
         });
}

void SimulatedClient::lose_connection(std::uint64_t late_ns) {
  line_->late_ns = late_ns;
  lost_.push_back(line_);
  const std::uint64_t end_ns = std::max(next_arrival_ns_, network_.now()) + late_ns + 1;
  network_.later(end_ns, [this, line = line_] { end(*line); });
  decoder_ = store::WireDecoder(store::kMaxFrameBytes);
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    Operation* operation = pending->second.operation;
    if (pending->second.is_barrier) give_up_barrier(pending->second, end_ns);
    if (operation != nullptr && only_reads(operation->kind))
      end(pending->second, Operation::End::kNothing);
    pending = pending->second.number == 0 ? pending_.erase(pending) : std::next(pending);
  }
  next_arrival_ns_ = 0;
  dial();
  for (const auto& [id, pending] : pending_)
    send(frame_of(pending, static_cast<std::uint32_t>(id), true), store::Check{}, id);
}

void SimulatedClient::continue_turn() {
  if (!closed_ && torch_ != nullptr && torch_->has_more()) arrive({});
}

void SimulatedClient::give_up_barrier(const Pending& pending, std::uint64_t until_ns) {
  network_.history().given_up[generation_].push_back({member_, pending.invoked, until_ns});
}

void SimulatedClient::hang_up() {
  if (closed_) return;
  closed_ = true;
  for (const auto& [id, pending] : pending_)
    if (pending.is_barrier) give_up_barrier(pending, network_.now());
  if (engine_client_ != 0) {
    network_.left(engine_client_);
    network_.engine().leave(engine_client_);
  }
  if (line_ != nullptr) end(*line_);
  for (const auto& line : lost_) end(*line);
  if (torch_ != nullptr && torch_->client() != 0) network_.left(torch_->client());
  torch_.reset();
}

// ---- Replies
// -------------------------------------------------------------------------------------

void SimulatedClient::take(const store::Reply& reply) {
  if (closed_) return;
  next_reply_ns_ = std::max(next_reply_ns_, network_.now() + network_.pick(5) * kMilli / 2);
  if (protocol_ == Protocol::kEngine) {
    network_.later(next_reply_ns_, [this, reply] {
      if (!closed_) handle_reply(reply);
    });
    return;
  }
  std::string bytes;
  if (line_ != nullptr) {
    if (line_->dialect->client() != reply.client) return;  // That connection was lost.
    line_->dialect->reply(reply, bytes);
  } else {
    const Result<void> printed = torch_->reply(reply, bytes);
    if (!printed.ok() && generation_ == network_.engine().generation())
      network_.fail("torch: " + printed.error().message);
  }
  network_.later(next_reply_ns_, [this, line = line_, bytes] {
    if (!closed_ && line == line_) handle_bytes(bytes);
  });
}

void SimulatedClient::end(Pending& pending, Operation::End how) {
  pending.operation->end = how;
  pending.operation->returned = network_.now();
}

void SimulatedClient::handle_reply(const store::Reply& reply) {
  const auto found = pending_.find(reply.request);
  if (found == pending_.end()) return network_.fail("an answer without a request");
  Pending pending = found->second;
  pending_.erase(found);
  if (pending.is_cancel) return;
  const auto* error = std::get_if<Error>(&reply.body);
  if (pending.is_barrier) {
    const auto* round = std::get_if<store::Number>(&reply.body);
    if (round == nullptr) return give_up_barrier(pending, network_.now());
    network_.history().rounds[{generation_, round->value}].push_back(
        {member_, pending.invoked, network_.now()});
    return;
  }
  Operation& operation = *pending.operation;
  if (error != nullptr) {
    const bool about_contents = error->code == Code::kNotFound ||
                                error->code == Code::kAlreadyExists ||
                                error->code == Code::kInvalidArgument;
    operation.missing = about_contents;
    return end(pending, about_contents ? Operation::End::kAnswered : Operation::End::kNothing);
  }
  if (const auto* value = std::get_if<store::Value>(&reply.body)) operation.got = value->bytes;
  if (const auto* values = std::get_if<store::Values>(&reply.body)) operation.many = values->bytes;
  if (const auto* number = std::get_if<store::Number>(&reply.body)) {
    operation.number = number->value;
    operation.missing = operation.kind == Kind::kCheck && number->value == 0;
  }
  if (const auto* compared = std::get_if<store::Compared>(&reply.body)) {
    operation.stored = compared->stored;
    operation.got = compared->current;
  }
  end(pending, Operation::End::kAnswered);
}

void SimulatedClient::handle_bytes(const std::string& bytes) {
  if (protocol_ == Protocol::kNative) {
    decoder_.feed(bytes);
    while (auto frame = *decoder_.next()) handle_frame(*frame);
    return;
  }
  received_ += bytes;
  while (!received_.empty() && handle_torch()) {
  }
}

// Converts a frame back into a reply.
void SimulatedClient::handle_frame(const store::WireFrame& frame) {
  store::Reply reply;
  reply.request = frame.head.id;
  store::PayloadReader in(frame.payload);
  const auto found = pending_.find(frame.head.id);
  if (found == pending_.end()) return network_.fail("an answer without a request");
  if (frame.head.kind != 0) {
    reply.body = Error{static_cast<Code>(frame.head.kind), std::string(in.text())};
    return handle_reply(reply);
  }
  if (found->second.is_barrier) {
    reply.body = store::Number{in.i64()};
    return handle_reply(reply);
  }
  if (found->second.is_cancel) return handle_reply(reply);
  const Operation& operation = *found->second.operation;
  switch (operation.kind) {
    case Kind::kGet:
    case Kind::kWaitGet:
    case Kind::kPop:
      reply.body = store::Value{std::string(in.text())};
      break;
    case Kind::kCheck:
    case Kind::kDelete:
      reply.body = store::Number{in.u8()};
      break;
    case Kind::kAdd:
    case Kind::kAppend:
    case Kind::kPush:
    case Kind::kLength:
      reply.body = store::Number{in.i64()};
      break;
    case Kind::kMultiGet: {
      store::Values values;
      for (std::size_t i = 0; i < operation.keys.size(); ++i) values.bytes.emplace_back(in.text());
      reply.body = std::move(values);
      break;
    }
    case Kind::kCompareSet: {
      store::Compared compared;
      compared.stored = in.u8() == 1;
      const bool exists = in.u8() == 1;
      std::string current(in.text());
      if (exists) compared.current = std::move(current);
      reply.body = std::move(compared);
      break;
    }
    default:
      break;
  }
  if (!in.done()) network_.fail("a reply with extra bytes");
  handle_reply(reply);
}

// Handles one complete answer. Unanswered requests before it have been executed.
bool SimulatedClient::handle_torch() {
  while (!pending_.empty()) {
    Pending& first = pending_.begin()->second;
    if (first.is_cancel || !is_silent(first.operation->kind)) break;
    first.operation->number = -1;
    end(first, Operation::End::kAnswered);
    pending_.erase(pending_.begin());
  }
  if (pending_.empty()) {
    network_.fail("torch: an answer without a request");
    return false;
  }
  Pending& pending = pending_.begin()->second;
  if (pending.is_cancel) {  // Its wait was answered earlier.
    if (received_[0] != 1) network_.fail("torch: a cancel has a wrong answer");
    received_.erase(0, 1);
    pending_.erase(pending_.begin());
    return true;
  }
  Operation& operation = *pending.operation;
  switch (operation.kind) {
    case Kind::kWait:
    case Kind::kCheck:
      handle_torch_wait();
      break;
    case Kind::kAdd:
    case Kind::kDelete:
    case Kind::kLength:
      if (!handle_torch_number(operation)) return false;
      end(pending, Operation::End::kAnswered);
      pending_.erase(pending_.begin());
      break;
    default:
      if (!handle_torch_text(operation)) return false;
      end(pending, Operation::End::kAnswered);
      pending_.erase(pending_.begin());
      break;
  }
  return true;
}

void SimulatedClient::handle_torch_wait() {
  Pending& pending = pending_.begin()->second;
  Operation& operation = *pending.operation;
  const bool was_cancelled = pending_.size() > 1 && std::next(pending_.begin())->second.is_cancel;
  if (operation.kind == Kind::kWait && received_[0] == 1) {
    // The wait was cancelled: this byte is the answer to the cancel.
    if (!was_cancelled) network_.fail("torch: a wait ended as cancelled without a cancel");
    end(pending, Operation::End::kNothing);
    pending_.erase(pending_.begin());
    return;
  }
  operation.missing = operation.kind == Kind::kCheck && received_[0] == 1;
  received_.erase(0, 1);
  end(pending, Operation::End::kAnswered);
  pending_.erase(pending_.begin());
}

bool SimulatedClient::handle_torch_number(Operation& operation) {
  if (received_.size() < 8) return false;
  operation.number = static_cast<std::int64_t>(read_number(received_, 0));
  received_.erase(0, 8);
  return true;
}

bool SimulatedClient::handle_torch_text(Operation& operation) {
  std::size_t at = 0;
  if (received_.size() < 8) return false;
  if (operation.kind == Kind::kPop) {
    operation.missing = read_number(received_, 0) == 0;
    if (operation.missing) {
      received_.erase(0, 8);
      return true;
    }
    at = 8;
    if (received_.size() < 16) return false;
  }
  const std::size_t length = read_number(received_, at);
  if (received_.size() < at + 8 + length) return false;
  operation.got = received_.substr(at + 8, length);
  // No client stores an empty value.
  if (operation.kind == Kind::kGet) operation.missing = length == 0;
  received_.erase(0, at + 8 + length);
  return true;
}

}  // namespace ivy::test
