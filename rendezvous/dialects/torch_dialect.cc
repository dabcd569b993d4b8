#include "rendezvous/dialects/torch_dialect.h"

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "rendezvous/engine/explanation.h"

namespace ivy::store {
namespace {

// Numbers of dialect C; those of A are mapped to them.
enum class TorchOp : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kCount = 7,
  kDelete = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLength = 16,
  kListKeys = 17,
  kBarrier = 18,
  kWatchKey = 19,  // Dialect A only; not a number on the wire.
};

// The fields after the opcode: k key, v value, n 64-bit number, u 32-bit number; "*" reads a count,
// and the rest then repeats that many times.
constexpr std::array<std::string_view, 20> kFields = {"u",  "kv", "kvv", "k",  "kn",  "*k", "*k",
                                                      "",   "k",  "kv",  "*k", "*kv", "",   "u",
                                                      "kv", "k",  "k",   "",   "kn",  "k"};

constexpr std::array<TorchOp, 9> kDialectA = {
    TorchOp::kSet,  TorchOp::kCompareSet, TorchOp::kGet,      TorchOp::kAdd,   TorchOp::kCheck,
    TorchOp::kWait, TorchOp::kCount,      TorchOp::kWatchKey, TorchOp::kDelete};

constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;
constexpr char kStopWaiting = 0;
constexpr char kWaitCanceled = 1;
constexpr char kKeyWatched = 3;
constexpr std::size_t kCompactBytes = 64u << 10;

constexpr const char* kTorch21 =
    "torch 2.1 speaks here, which numbers its requests in a way of its own; use 2.0 or before, or "
    "2.2 or later";

// Packs the operation into the request's id, so that the reply needs no table.
RequestId request_id(std::uint64_t number, TorchOp op) {
  return number << 8 | static_cast<RequestId>(op);
}
TorchOp op_of(RequestId request) { return static_cast<TorchOp>(request & 0xff); }

// True for writes that get no reply: torch does not wait for them before its next request or its
// exit.
bool is_unanswered(TorchOp op) {
  return op == TorchOp::kSet || op == TorchOp::kAppend || op == TorchOp::kMultiSet ||
         op == TorchOp::kQueuePush;
}

std::uint64_t little(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

void put_number(std::string& out, std::int64_t value) {
  put_u64(out, static_cast<std::uint64_t>(value));
}

void put_bytes(std::string& out, std::string_view bytes) {
  put_u64(out, bytes.size());
  out.append(bytes);
}

Error damaged(const std::string& what) { return Error{Code::kDataLoss, "torch store: " + what}; }

Result<void> encode_error(TorchOp op, const Error& error, std::string& bytes) {
  if (error.code == Code::kCancelled) return {};  // CANCEL_WAIT has its own reply.
  if (op != TorchOp::kGet || error.code != Code::kNotFound) return damaged(error.message);
  put_bytes(bytes, {});
  return {};
}

}  // namespace

struct TorchDialect::State {
  enum class Dialect { kUnknown, kA, kC };
  // A request that has not wholly arrived.
  struct Incoming {
    std::optional<TorchOp> op;
    std::size_t field = 0;   // Index into kFields[op], after any '*'.
    bool counted = false;    // The count has been read.
    std::uint64_t left = 1;  // Repetitions that have not been read.
    std::vector<std::string> texts;
    std::int64_t number = 0;
    std::size_t bytes = 0;
  };

  State(StoreFront& engine_, std::uint32_t generation_, std::string address_)
      : engine(engine_), generation(generation_), address(std::move(address_)) {}

  Result<void> receive(std::uint64_t now_ns, Replies& out);
  void compact();
  Result<bool> recognize();
  Result<bool> read_request();
  Result<bool> read_field(char kind);
  Result<void> serve(std::uint64_t now_ns, Replies& out);
  void apply(TorchOp op, Request request, std::uint64_t now_ns, Replies& out) {
    const RequestId id = upcoming_id(op);
    requests += 1;
    engine.apply(client, id, std::move(request), now_ns, out);
  }
  Result<void> note_watch();
  Result<void> watched_now(const Compared& present, std::string& bytes);
  Request request_of(TorchOp op);
  Result<void> encode(TorchOp op, const Reply& reply, std::string& bytes);
  Result<void> changed(const Changed& change, std::string& bytes);
  Result<void> check_watched() const {
    if (watched_bytes <= kMaxTorchRequestBytes) return {};
    return damaged("the values of watched keys are longer than " +
                   std::to_string(kMaxTorchRequestBytes) + " bytes");
  }
  RequestId upcoming_id(TorchOp op) const { return request_id(requests + 1, op); }
  std::string_view rest() const { return std::string_view(buffer).substr(consumed); }
  std::string text(std::size_t index) { return std::move(incoming.texts[index]); }
  // Dialect A has no CANCEL_WAIT: its client gives up a wait by sending another request on the same
  // connection.
  bool has_given_up() const {
    return dialect == Dialect::kA && waiting != 0 && op_of(waiting) == TorchOp::kWait &&
           !rest().empty();
  }
  void give_up(std::uint64_t now_ns, Replies& out);
  // Only CANCEL_WAIT may be read while a request waits.
  bool next_is_cancel() const {
    return dialect == Dialect::kC && !rest().empty() &&
           static_cast<unsigned char>(rest()[0]) == static_cast<unsigned>(TorchOp::kCancelWait);
  }

  StoreFront& engine;
  const std::uint32_t generation;
  const std::string address;
  ClientId client = 0;
  Dialect dialect = Dialect::kUnknown;
  bool validated = false;
  std::string buffer;
  std::size_t consumed = 0;
  Incoming incoming;
  std::uint64_t requests = 0;
  RequestId waiting = 0;         // The waiting request that delays those after it.
  std::set<RequestId> given_up;  // Waits of dialect A that were given up.
  bool has_more = false;         // Bytes that have arrived were left for another turn.
  std::map<std::string, std::optional<std::string>> watched;  // Dialect A: key to its last value.
  std::size_t watched_bytes = 0;
  std::deque<std::string> watches_asked;  // Keys without an answer yet, in order.
};

// Finds the dialect by the first bytes; true when it is known.
Result<bool> TorchDialect::State::recognize() {
  const std::string_view bytes = rest();
  if (bytes.empty()) return false;
  const unsigned first = static_cast<unsigned char>(bytes[0]);
  if (first == 0) {
    // This is VALIDATE of C, or a SET of A with a length that no client sends.
    if (bytes.size() < 5) return false;
    const bool is_c = little(bytes.substr(1, 4)) == kValidateMagic;
    dialect = is_c ? Dialect::kC : Dialect::kA;
    return true;
  }
  if (bytes.size() < 4 && first == (kValidateMagic & 0xff)) return false;
  if (bytes.size() >= 4 && little(bytes.substr(0, 4)) == kValidateMagic) {
    return damaged(
        "a development version of torch from 2023 speaks here; use 2.0 or before, or "
        "2.2 or later");
  }
  if (first < kDialectA.size()) {
    dialect = Dialect::kA;
    return true;
  }
  if (first <= static_cast<unsigned>(TorchOp::kBarrier)) return damaged(kTorch21);
  return damaged("the first byte is " + std::to_string(first) + ": this is no torch store client");
}

// Reads the fields of `incoming`; true when it is complete.
Result<bool> TorchDialect::State::read_request() {
  if (!incoming.op) {
    if (rest().empty()) return false;
    const unsigned number = static_cast<unsigned char>(rest()[0]);
    const bool known = dialect == Dialect::kA ? number < kDialectA.size()
                                              : number <= static_cast<unsigned>(TorchOp::kBarrier);
    if (!known && dialect == Dialect::kA && number <= static_cast<unsigned>(TorchOp::kCancelWait))
      return damaged(kTorch21);
    if (!known) return damaged("request number " + std::to_string(number) + " is unknown");
    incoming.op = dialect == Dialect::kA ? kDialectA[number] : static_cast<TorchOp>(number);
    if (dialect == Dialect::kC && validated == (incoming.op == TorchOp::kValidate)) {
      return damaged(validated ? "a second greeting" : "the first request is no greeting");
    }
    consumed += 1;
  }
  std::string_view fields = kFields[static_cast<std::size_t>(*incoming.op)];
  if (fields.starts_with('*')) {
    fields.remove_prefix(1);
    if (!incoming.counted) {
      if (rest().size() < 8) return false;
      incoming.left = little(rest().substr(0, 8));
      if (incoming.left > kMaxKeysPerRequest) {
        return damaged("a request with " + std::to_string(incoming.left) + " keys; at most " +
                       std::to_string(kMaxKeysPerRequest));
      }
      incoming.counted = true;
      consumed += 8;
    }
  }
  while (!fields.empty() && incoming.left > 0) {
    const Result<bool> whole = read_field(fields[incoming.field]);
    if (!whole.ok() || !*whole) return whole;
    if (++incoming.field == fields.size()) {
      incoming.field = 0;
      incoming.left -= 1;
    }
  }
  return true;
}

Result<bool> TorchDialect::State::read_field(char kind) {
  if (kind == 'n' || kind == 'u') {
    const std::size_t size = kind == 'n' ? 8 : 4;
    if (rest().size() < size) return false;
    incoming.number = static_cast<std::int64_t>(little(rest().substr(0, size)));
    consumed += size;
    return true;
  }
  if (rest().size() < 8) return false;
  const std::uint64_t length = little(rest().substr(0, 8));
  const std::size_t limit = kind == 'k' ? kMaxKeyBytes : kMaxValueBytes;
  if (length > limit) {
    return damaged(std::string(kind == 'k' ? "a key" : "a value") + " of " +
                   std::to_string(length) + " bytes is longer than " + std::to_string(limit));
  }
  if (incoming.bytes + length > kMaxTorchRequestBytes) {
    return damaged("a request is longer than " + std::to_string(kMaxTorchRequestBytes) + " bytes");
  }
  if (rest().size() < 8 + length) return false;
  incoming.texts.emplace_back(rest().substr(8, length));
  incoming.bytes += length;
  consumed += 8 + length;
  return true;
}

Result<void> TorchDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  state_->buffer.append(bytes);
  const Result<void> served = state_->receive(now_ns, out);
  state_->compact();
  return served;
}

Result<void> TorchDialect::State::receive(std::uint64_t now_ns, Replies& out) {
  has_more = false;
  if (dialect == Dialect::kUnknown && !IVY_TRY(recognize())) return {};
  Turn turn(out);
  while (true) {
    if (has_given_up()) give_up(now_ns, out);
    if (waiting != 0 && !next_is_cancel()) break;
    if (turn.over()) {
      has_more = true;
      return {};
    }
    if (!IVY_TRY(read_request())) return {};
    IVY_CHECK(serve(now_ns, out));
    incoming = {};
    turn.count();
  }
  has_more = !rest().empty();
  const TorchOp held_by = op_of(waiting);
  const bool waits = held_by == TorchOp::kWait || held_by == TorchOp::kBarrier;
  if (rest().size() > (waits ? kMaxBehindTorchWait : kMaxTorchRequestBytes))
    return damaged("requests pile up behind one that waits");
  return {};
}

void TorchDialect::State::compact() {
  if (consumed == buffer.size()) {
    // A large value must not keep its memory for the life of the connection.
    if (buffer.capacity() > kCompactBytes) buffer = {};
    buffer.clear();
    consumed = 0;
  } else if (consumed > buffer.size() / 2) {  // So each byte is moved once at most.
    buffer.erase(0, consumed);
    consumed = 0;
  }
}

Request TorchDialect::State::request_of(TorchOp op) {
  switch (op) {
    case TorchOp::kSet:
      return Set{text(0), text(1)};
    case TorchOp::kGet:
      // Clients wait for a key before they get it. One that was deleted since is answered as
      // torch's own server does, with an empty value (encode_error): this request has no timeout.
      return Get{text(0), std::nullopt};
    case TorchOp::kAdd:
      return Add{text(0), incoming.number};
    case TorchOp::kCheck:
      return Check{std::move(incoming.texts)};
    case TorchOp::kWait:
      return Wait{std::move(incoming.texts)};
    case TorchOp::kDelete:
      return Delete{text(0)};
    case TorchOp::kAppend:
      return Append{text(0), text(1)};
    case TorchOp::kMultiGet:
      return MultiGet{std::move(incoming.texts)};
    case TorchOp::kMultiSet: {
      MultiSet set;
      for (std::size_t i = 0; i + 1 < incoming.texts.size(); i += 2)
        set.entries.emplace_back(text(i), text(i + 1));
      return set;
    }
    case TorchOp::kCompareSet: {
      std::string key = text(0);
      std::string wanted = text(1);
      return CompareSet{std::move(key), std::move(wanted), text(2), true};
    }
    case TorchOp::kQueuePush:
      return QueuePush{text(0), text(1)};
    case TorchOp::kQueuePop:
      return QueuePop{text(0), std::nullopt, true};
    case TorchOp::kQueueLength:
      return QueueLength{text(0)};
    case TorchOp::kListKeys:
      return List{};
    case TorchOp::kBarrier:
      return AddAndWait{text(0), incoming.number};
    case TorchOp::kCancelWait:
      return Cancel{std::exchange(waiting, 0), {}};
    case TorchOp::kWatchKey:
      return Watch{text(0), true};
    default:
      return Count{};
  }
}

Result<void> TorchDialect::State::serve(std::uint64_t now_ns, Replies& out) {
  if (client == 0) {
    ClientInfo info;
    info.space = Space::kTorch;
    info.generation = generation;
    info.address = address;
    client = IVY_TRY(engine.join(std::move(info), now_ns));
  }
  const TorchOp op = *incoming.op;
  switch (op) {
    case TorchOp::kValidate:
      if (incoming.number != kValidateMagic) return damaged("a greeting with a wrong number");
      validated = true;
      return {};
    case TorchOp::kPing:
      engine.describe(client, static_cast<std::uint32_t>(incoming.number), std::nullopt);
      // The engine has no ping: the answer to an empty check comes at the right place among others.
      apply(op, Check{}, now_ns, out);
      if (std::holds_alternative<Number>(out.back().body))
        out.back().body = Number{incoming.number};
      return {};
    case TorchOp::kWatchKey:
      IVY_CHECK(note_watch());
      break;
    default:
      break;
  }
  const std::size_t before = out.size();
  const RequestId id = upcoming_id(op);
  Request request = request_of(op);
  apply(op, std::move(request), now_ns, out);
  for (std::size_t i = before; i < out.size(); ++i) {
    if (out[i].client == client && out[i].request == id) return {};
  }
  // A leaf answers writes later, too, but they hold up no other request: it passes them on in
  // order.
  if (!is_unanswered(op)) waiting = id;
  return {};
}

void TorchDialect::State::give_up(std::uint64_t now_ns, Replies& out) {
  given_up.insert(waiting);
  // Sent as VALIDATE, whose reply the client does not get.
  apply(TorchOp::kValidate, Cancel{std::exchange(waiting, 0), {}}, now_ns, out);
}

// From this opcode on torch 2.1 has other numbers: this is its DELETE_KEY. A client of 2.0 watches
// on a connection on which it does nothing else, so any other request before means 2.1.
Result<void> TorchDialect::State::note_watch() {
  if (requests != watched.size()) return damaged(kTorch21);
  const std::string& key = incoming.texts[0];
  if (watched.contains(key)) return damaged("key '" + shown_key(key) + "' is watched twice");
  watched[key];
  watches_asked.push_back(key);
  return {};
}

Result<void> TorchDialect::reply(const Reply& reply, std::string& bytes) {
  State& state = *state_;
  const TorchOp op = op_of(reply.request);
  if (reply.request == state.waiting) state.waiting = 0;
  if (state.given_up.erase(reply.request) > 0) return {};
  if (const auto* error = std::get_if<Error>(&reply.body)) return encode_error(op, *error, bytes);
  return state.encode(op, reply, bytes);
}

Result<void> TorchDialect::State::encode(TorchOp op, const Reply& reply, std::string& bytes) {
  switch (op) {
    case TorchOp::kSet:
    case TorchOp::kAppend:
    case TorchOp::kMultiSet:
    case TorchOp::kQueuePush:
    case TorchOp::kValidate:
      return {};  // Pure writes get no reply.
    case TorchOp::kCompareSet:
      put_bytes(bytes, *std::get<Compared>(reply.body).current);
      return {};
    case TorchOp::kGet:
      put_bytes(bytes, std::get<Value>(reply.body).bytes);
      return {};
    case TorchOp::kAdd:
    case TorchOp::kCount:
    case TorchOp::kDelete:
    case TorchOp::kQueueLength:
      put_number(bytes, std::get<Number>(reply.body).value);
      return {};
    case TorchOp::kCheck:
      bytes.push_back(std::get<Number>(reply.body).value == 1 ? 0 : 1);
      return {};
    case TorchOp::kWait:
    case TorchOp::kBarrier:
      bytes.push_back(kStopWaiting);
      return {};
    case TorchOp::kMultiGet:
      for (const std::string& value : std::get<Values>(reply.body).bytes) put_bytes(bytes, value);
      return {};
    case TorchOp::kCancelWait:
      bytes.push_back(kWaitCanceled);
      return {};
    case TorchOp::kPing:
      put_u32(bytes, static_cast<std::uint32_t>(std::get<Number>(reply.body).value));
      return {};
    case TorchOp::kQueuePop: {
      const auto& [length, item] = std::get<Popped>(reply.body);
      put_number(bytes, length);
      if (item) put_bytes(bytes, *item);
      return {};
    }
    case TorchOp::kListKeys: {
      const auto& [keys, more] = std::get<Keys>(reply.body);
      if (more) return damaged("the store has too many keys to list them in one reply");
      put_number(bytes, static_cast<std::int64_t>(keys.size()));
      for (const std::string& key : keys) put_bytes(bytes, key);
      return {};
    }
    case TorchOp::kWatchKey:
      if (const auto* change = std::get_if<Changed>(&reply.body)) {
        return changed(*change, bytes);
      }
      return watched_now(std::get<Compared>(reply.body), bytes);
  }
  return damaged("a reply of no known kind");
}

Result<void> TorchDialect::State::watched_now(const Compared& present, std::string& bytes) {
  watched[watches_asked.front()] = present.current;
  watches_asked.pop_front();
  watched_bytes += present.current ? present.current->size() : 0;
  IVY_CHECK(check_watched());
  bytes.push_back(kKeyWatched);
  return {};
}

Result<void> TorchDialect::State::changed(const Changed& change, std::string& bytes) {
  enum : char { kUpdated = 0, kCreated = 1, kDeleted = 2 };
  std::optional<std::string>& last = watched[change.key];
  watched_bytes = watched_bytes - last.value_or(std::string()).size() + change.value.size();
  IVY_CHECK(check_watched());
  const bool deleted = change.what == Changed::What::kDeleted;
  bytes.push_back(deleted ? kDeleted : last ? kUpdated : kCreated);
  put_bytes(bytes, change.key);
  put_bytes(bytes, last.value_or(std::string()));
  put_bytes(bytes, change.value);
  last = deleted ? std::nullopt : std::optional(change.value);
  return {};
}

TorchDialect::TorchDialect(StoreFront& engine, std::uint32_t generation, std::string address)
    : state_(std::make_unique<State>(engine, generation, std::move(address))) {}

TorchDialect::~TorchDialect() {
  if (state_->client != 0) state_->engine.leave(state_->client);
}

bool TorchDialect::has_more() const { return state_->waiting == 0 && state_->has_more; }

std::size_t TorchDialect::kept_bytes() const {
  const State& state = *state_;
  return state.buffer.size() + state.incoming.bytes +
         state.incoming.texts.capacity() * sizeof(std::string) + state.watched_bytes;
}

ClientId TorchDialect::client() const { return state_->client; }

std::string_view TorchDialect::dialect() const {
  switch (state_->dialect) {
    case State::Dialect::kA:
      return "torch 2.0 or before";
    case State::Dialect::kC:
      return "torch 2.2 or later";
    case State::Dialect::kUnknown:
      break;
  }
  return {};
}

}  // namespace ivy::store
