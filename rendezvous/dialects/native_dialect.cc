#include "rendezvous/dialects/native_dialect.h"

#include <utility>

namespace ivy::store {
namespace {

constexpr std::uint64_t kNanosPerMilli = 1'000'000;

std::uint64_t deadline_of(std::uint64_t timeout_ms, std::uint64_t now_ns) {
  if (timeout_ms >= (kNever - now_ns) / kNanosPerMilli) return kNever;
  return now_ns + timeout_ms * kNanosPerMilli;
}

std::string text_of(PayloadReader& in) { return std::string(in.text()); }

// Reads a count of keys. InvalidArgument: more than are allowed; nothing after it is read.
Result<std::uint32_t> count_of(PayloadReader& in) {
  const std::uint32_t count = in.u32();
  if (count <= kMaxKeysPerRequest) return count;
  return Error{Code::kInvalidArgument, "a request with " + std::to_string(count) +
                                           " keys; at most " + std::to_string(kMaxKeysPerRequest)};
}

Result<std::vector<std::string>> keys_of(PayloadReader& in) {
  const std::uint32_t count = IVY_TRY(count_of(in));
  std::vector<std::string> keys;
  // A key takes four bytes at least, so a count that is too large ends the loop early.
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) keys.push_back(text_of(in));
  return keys;
}

Result<MultiSet> entries_of(PayloadReader& in) {
  MultiSet set;
  const std::uint32_t count = IVY_TRY(count_of(in));
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string key = text_of(in);
    set.entries.emplace_back(std::move(key), text_of(in));
  }
  return set;
}

// Reads the fields before the payload of a numbered request.
Result<Numbered> numbered_by(Op op, PayloadReader& in) {
  Numbered numbered;
  numbered.number = in.u64();
  numbered.lowest = in.u64();
  numbered.again = in.u8() != 0;
  const bool is_possible =
      op == Op::kSet || op == Op::kSetOnce || op == Op::kMultiSet || op == Op::kDelete;
  if (is_possible && in.ok() && numbered.lowest > 0 && numbered.lowest <= numbered.number)
    return numbered;
  return Error{Code::kDataLoss, "a request with a damaged number"};
}

// Packs the id on the wire and the operation into one id, so that the reply needs no table.
RequestId request_id(Op op, std::uint32_t id) {
  return static_cast<RequestId>(id) << 8 | static_cast<RequestId>(op);
}

Barrier barrier_of(PayloadReader& in, std::uint64_t now_ns) {
  Barrier barrier;
  barrier.deadline_ns = deadline_of(in.u64(), now_ns);
  barrier.name = text_of(in);
  barrier.size = in.u32();
  barrier.member = in.u32();
  barrier.call = in.u64();
  if (!in.done()) barrier.ends_with_a_loss = in.u8() != 0;
  return barrier;
}

CompareSet compare_set_of(PayloadReader& in) {
  CompareSet request;
  request.key = text_of(in);
  const bool expects = in.u8() != 0;
  std::string expected = text_of(in);
  if (expects) request.expected = std::move(expected);
  request.desired = text_of(in);
  return request;
}

List list_of(PayloadReader& in) {
  List list;
  list.prefix = text_of(in);
  list.limit = in.u32();
  list.after = text_of(in);
  return list;
}

// Reads two texts in order.
template <class Kind>
Kind keyed(PayloadReader& in) {
  Kind request;
  request.key = text_of(in);
  request.value = text_of(in);
  return request;
}

void put_reply(Op op, const Reply& reply, std::string& out) {
  if (const auto* value = std::get_if<Value>(&reply.body)) {
    put_text(out, value->bytes);
  } else if (const auto* values = std::get_if<Values>(&reply.body)) {
    for (const std::string& bytes : values->bytes) put_text(out, bytes);
  } else if (const auto* number = std::get_if<Number>(&reply.body)) {
    if (op == Op::kCheck || op == Op::kDelete) {
      put_u8(out, static_cast<std::uint8_t>(number->value));
    } else {
      put_u64(out, static_cast<std::uint64_t>(number->value));
    }
  } else if (const auto* compared = std::get_if<Compared>(&reply.body)) {
    put_u8(out, compared->stored ? 1 : 0);
    put_u8(out, compared->current ? 1 : 0);
    put_text(out, compared->current.value_or(std::string()));
  } else if (const auto* keys = std::get_if<Keys>(&reply.body)) {
    put_u8(out, keys->more ? 1 : 0);
    put_u32(out, static_cast<std::uint32_t>(keys->keys.size()));
    for (const std::string& key : keys->keys) put_text(out, key);
  } else if (const auto* change = std::get_if<Changed>(&reply.body)) {
    put_u8(out, static_cast<std::uint8_t>(change->what));
    put_text(out, change->key);
    put_text(out, change->value);
  }
}

}  // namespace

struct NativeDialect::State {
  StoreFront& engine;
  ClientId client = 0;
  WireDecoder decoder{kMaxFrameBytes};
  bool turn_over = false;

  Result<void> serve(const WireFrame& frame, std::uint64_t now_ns, Replies& out);
  Result<Request> request_of(Op op, PayloadReader& in, std::uint64_t now_ns);
};

NativeDialect::NativeDialect(std::unique_ptr<State> state) : state_(std::move(state)) {}

NativeDialect::~NativeDialect() { state_->engine.leave(state_->client); }

ClientId NativeDialect::client() const { return state_->client; }

Result<std::unique_ptr<NativeDialect>> NativeDialect::make(StoreFront& engine, ClientInfo info,
                                                           std::uint64_t now_ns) {
  const ClientId client = IVY_TRY(engine.join(std::move(info), now_ns));
  auto state = std::make_unique<State>(State{.engine = engine, .client = client});
  return std::unique_ptr<NativeDialect>(new NativeDialect(std::move(state)));
}

Result<void> NativeDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  if (!bytes.empty()) state_->decoder.feed(bytes);
  state_->turn_over = false;
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

bool NativeDialect::has_more() const { return state_->turn_over; }

Result<Request> NativeDialect::State::request_of(Op op, PayloadReader& in, std::uint64_t now_ns) {
  switch (op) {
    case Op::kSet:
      return Request(keyed<Set>(in));
    case Op::kSetOnce: {
      Set set = keyed<Set>(in);
      set.once = true;
      return Request(std::move(set));
    }
    case Op::kGet:
      return Request(Get{text_of(in), std::nullopt});
    case Op::kWait: {
      const std::uint64_t deadline = deadline_of(in.u64(), now_ns);
      return Request(Wait{IVY_TRY(keys_of(in)), deadline});
    }
    case Op::kWaitGet: {
      const std::uint64_t deadline = deadline_of(in.u64(), now_ns);
      return Request(Get{text_of(in), deadline});
    }
    case Op::kCheck:
      return Request(Check{IVY_TRY(keys_of(in))});
    case Op::kAdd: {
      std::string key = text_of(in);
      return Request(Add{std::move(key), in.i64()});
    }
    case Op::kCompareSet:
      return Request(compare_set_of(in));
    case Op::kAppend:
      return Request(keyed<Append>(in));
    case Op::kDelete:
      return Request(Delete{text_of(in)});
    case Op::kMultiGet:
      return Request(MultiGet{IVY_TRY(keys_of(in))});
    case Op::kMultiSet:
      return Request(IVY_TRY(entries_of(in)));
    case Op::kQueuePush:
      return Request(keyed<QueuePush>(in));
    case Op::kQueuePop: {
      const std::uint64_t deadline = deadline_of(in.u64(), now_ns);
      return Request(QueuePop{text_of(in), deadline});
    }
    case Op::kQueueLength:
      return Request(QueueLength{text_of(in)});
    case Op::kList:
      return Request(list_of(in));
    case Op::kCount:
      return Request(Count{text_of(in)});
    case Op::kBarrier:
      return Request(barrier_of(in, now_ns));
    case Op::kWatch:
      return Request(Watch{text_of(in)});
    default:
      return Error{Code::kDataLoss,
                   "request number " + std::to_string(static_cast<unsigned>(op)) + " is unknown"};
  }
}

Result<void> NativeDialect::State::serve(const WireFrame& frame, std::uint64_t now_ns,
                                         Replies& out) {
  const bool is_numbered = (frame.head.kind & kNumberedOp) != 0;
  const auto op = static_cast<Op>(frame.head.kind & ~kNumberedOp);
  const RequestId id = request_id(op, frame.head.id);
  PayloadReader in(frame.payload);
  Numbered numbered;
  if (is_numbered) numbered = IVY_TRY(numbered_by(op, in));
  if (op == Op::kPing) {
    std::string text = text_of(in);
    if (!in.done()) return Error{Code::kDataLoss, "a damaged ping"};
    Reply& reply = out.emplace_back();
    reply.client = client;
    reply.request = id;
    reply.body = Value{std::move(text)};
    return {};
  }
  if (op == Op::kWhy) {
    if (!in.done()) return Error{Code::kDataLoss, "a damaged why"};
    engine.apply(client, id, Why{}, now_ns, out);
    return {};
  }
  if (op == Op::kCancel) {
    const std::uint32_t cancelled = in.u32();
    if (!in.done()) return Error{Code::kDataLoss, "a damaged cancel"};
    // Only these operations wait; the client need not say which of them it cancels.
    Cancel cancel;
    for (const Op waits : {Op::kWait, Op::kWaitGet, Op::kQueuePop, Op::kBarrier, Op::kWatch})
      cancel.or_these.push_back(request_id(waits, cancelled));
    engine.apply(client, id, std::move(cancel), now_ns, out);
    return {};
  }
  Result<Request> request = request_of(op, in, now_ns);
  if (!request.ok()) {
    if (request.error().code != Code::kInvalidArgument) return request.error();
    out.push_back({client, id, request.error()});
    return {};
  }
  if (!in.done()) {
    return Error{Code::kDataLoss,
                 "request number " + std::to_string(static_cast<unsigned>(op)) + " is damaged"};
  }
  if (is_numbered) *numbered_of(*request) = numbered;
  engine.apply(client, id, std::move(*request), now_ns, out);
  return {};
}

void NativeDialect::reply(const Reply& reply, std::string& bytes) {
  const auto op = static_cast<Op>(reply.request & 0xff);
  FrameHead head{0, static_cast<std::uint32_t>(reply.request >> 8)};
  std::string payload;
  if (const auto* error = std::get_if<Error>(&reply.body)) {
    head.kind = static_cast<std::uint8_t>(error->code);
    put_text(payload, error->message);
  } else {
    put_reply(op, reply, payload);
  }
  append_frame(bytes, head, payload);
}

}  // namespace ivy::store
