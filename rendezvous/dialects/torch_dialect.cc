// SPDX-License-Identifier: Apache-2.0
// receive() and serve_all() are the path of bytes: recognize() decides on the dialect, read_op()
// and read_request() collect the fields of one request by the table at the top, request_of()
// converts it for the engine, and serve() applies it. reply() encodes the engine's answers.
//
// Torch up to 2.0 speaks dialect A, torch from 2.2 on dialect C. Torch 2.1 (B) has other request
// numbers and is rejected with kTorch21 as soon as one of them shows it.
#include "rendezvous/dialects/torch_dialect.h"

#include <array>

#include "proto/wire/store_wire.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

// The fields after the opcode, by TorchOp: k is a key, v a value, n a 64-bit number, u a 32-bit
// number. "*" reads a count; the fields after it then repeat that many times.
constexpr std::array<std::string_view, 20> kFields = {
    "u",    // kValidate
    "kv",   // kSet
    "kvv",  // kCompareSet
    "k",    // kGet
    "kn",   // kAdd
    "*k",   // kCheck
    "*k",   // kWait
    "",     // kCount
    "k",    // kDelete
    "kv",   // kAppend
    "*k",   // kMultiGet
    "*kv",  // kMultiSet
    "",     // kCancelWait
    "u",    // kPing
    "kv",   // kQueuePush
    "k",    // kQueuePop
    "k",    // kQueueLength
    "",     // kListKeys
    "kn",   // kBarrier
    "k",    // kWatchKey
};

constexpr std::array<TorchOp, 9> kDialectA = {
    TorchOp::kSet,  TorchOp::kCompareSet, TorchOp::kGet,      TorchOp::kAdd,   TorchOp::kCheck,
    TorchOp::kWait, TorchOp::kCount,      TorchOp::kWatchKey, TorchOp::kDelete};

constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;
constexpr char kStopWaiting = 0;
constexpr char kWaitCanceled = 1;
constexpr char kKeyWatched = 3;
constexpr std::size_t kCompactBytes = 64u << 10;

constexpr const char* kTorch21 =
    "the client is torch 2.1, whose request numbers are not supported; use torch 2.0 or earlier, "
    "or 2.2 or later";

// Packs the operation into the request's id, so that the reply needs no table.
RequestId request_id(std::uint64_t number, TorchOp op) {
  return number << 8 | static_cast<RequestId>(op);
}
TorchOp op_of(RequestId request) { return static_cast<TorchOp>(request & 0xff); }

// Returns whether this write gets no reply: torch does not wait for one before its next request or
// its exit.
bool is_unanswered(TorchOp op) {
  return op == TorchOp::kSet || op == TorchOp::kAppend || op == TorchOp::kMultiSet ||
         op == TorchOp::kQueuePush;
}

void put_number(std::string& out, std::int64_t value) {
  put_u64(out, static_cast<std::uint64_t>(value));
}

void put_bytes(std::string& out, std::string_view bytes) {
  put_u64(out, bytes.size());
  out.append(bytes);
}

Error bad_torch(const std::string& what) { return Error{Code::kDataLoss, "torch store: " + what}; }

Result<void> encode_error(TorchOp op, const Error& error, std::string& bytes) {
  if (error.code == Code::kCancelled) return {};  // CANCEL_WAIT has its own reply.
  if (op != TorchOp::kGet || error.code != Code::kNotFound) return bad_torch(error.message);
  put_bytes(bytes, {});
  return {};
}

void encode_number(TorchOp op, std::int64_t value, std::string& bytes) {
  if (op == TorchOp::kCheck) {
    bytes.push_back(value == 1 ? 0 : 1);
  } else if (op == TorchOp::kPing) {
    put_u32(bytes, static_cast<std::uint32_t>(value));
  } else {
    put_number(bytes, value);
  }
}

Result<void> encode(TorchOp op, const ReplyBody& body, std::string& bytes) {
  if (std::holds_alternative<Done>(body)) {
    bytes.push_back(op == TorchOp::kCancelWait ? kWaitCanceled : kStopWaiting);
  } else if (const auto* compared = std::get_if<Compared>(&body)) {
    put_bytes(bytes, compared->current.value_or(std::string()));
  } else if (const auto* value = std::get_if<Value>(&body)) {
    put_bytes(bytes, value->bytes);
  } else if (const auto* number = std::get_if<Number>(&body)) {
    encode_number(op, number->value, bytes);
  } else if (const auto* values = std::get_if<Values>(&body)) {
    for (const std::string& one : values->bytes) put_bytes(bytes, one);
  } else if (const auto* popped = std::get_if<Popped>(&body)) {
    put_number(bytes, popped->length);
    if (popped->item) put_bytes(bytes, *popped->item);
  } else if (const auto* list = std::get_if<Keys>(&body)) {
    if (list->more) return bad_torch("the store has too many keys to list in one reply");
    put_number(bytes, static_cast<std::int64_t>(list->keys.size()));
    for (const std::string& key : list->keys) put_bytes(bytes, key);
  }
  return {};
}

}  // namespace

// Recognizes the dialect by the first bytes. Returns whether it is known.
Result<bool> TorchDialect::recognize() {
  const std::string_view bytes = rest();
  if (bytes.empty()) return false;
  const unsigned first = static_cast<unsigned char>(bytes[0]);
  if (first == 0) {
    // This is VALIDATE of C or SET of A. No client sends a key so long that its length looks like
    // the magic number.
    if (bytes.size() < 5) return false;
    const bool is_c = read_little(bytes.substr(1, 4)) == kValidateMagic;
    dialect_ = is_c ? Dialect::kC : Dialect::kA;
    return true;
  }
  if (bytes.size() < 4 && first == (kValidateMagic & 0xff)) return false;
  if (bytes.size() >= 4 && read_little(bytes.substr(0, 4)) == kValidateMagic) {
    return bad_torch(
        "the client is a development version of torch from 2023; use torch 2.0 or earlier, or "
        "2.2 or later");
  }
  if (first < kDialectA.size()) {
    dialect_ = Dialect::kA;
    return true;
  }
  if (first <= static_cast<unsigned>(TorchOp::kBarrier)) return bad_torch(kTorch21);
  return bad_torch("the first byte is " + std::to_string(first) +
                   ": this is not a torch store client");
}

// Reads the number of the next request.
Result<bool> TorchDialect::read_op() {
  if (rest().empty()) return false;
  const unsigned number = static_cast<unsigned char>(rest()[0]);
  const bool is_a = dialect_ == Dialect::kA;
  const bool is_known =
      is_a ? number < kDialectA.size() : number <= static_cast<unsigned>(TorchOp::kBarrier);
  if (!is_known && is_a && number <= static_cast<unsigned>(TorchOp::kCancelWait))
    return bad_torch(kTorch21);
  if (!is_known) return bad_torch("request number " + std::to_string(number) + " is unknown");
  incoming_.op = is_a ? kDialectA[number] : static_cast<TorchOp>(number);
  const bool is_greeting = incoming_.op == TorchOp::kValidate;
  if (!is_a && validated_ && is_greeting) return bad_torch("a second greeting");
  if (!is_a && !validated_ && !is_greeting) return bad_torch("the first request is not a greeting");
  consumed_ += 1;
  return true;
}

// Reads the number of times that the request's fields repeat.
Result<bool> TorchDialect::read_count() {
  if (rest().size() < 8) return false;
  incoming_.left = read_little(rest().substr(0, 8));
  if (incoming_.left > kMaxKeysPerRequest) {
    return bad_torch("a request with " + std::to_string(incoming_.left) + " keys; at most " +
                     std::to_string(kMaxKeysPerRequest));
  }
  incoming_.counted = true;
  consumed_ += 8;
  return true;
}

// Continues to read the current request. Returns whether it is complete.
Result<bool> TorchDialect::read_request() {
  if (!incoming_.op && !IVY_TRY(read_op())) return false;
  std::string_view fields = kFields[static_cast<std::size_t>(*incoming_.op)];
  if (fields.starts_with('*')) {
    fields.remove_prefix(1);
    if (!incoming_.counted && !IVY_TRY(read_count())) return false;
  }
  while (!fields.empty() && incoming_.left > 0) {
    if (!IVY_TRY(read_field(fields[incoming_.field]))) return false;
    if (++incoming_.field == fields.size()) {
      incoming_.field = 0;
      incoming_.left -= 1;
    }
  }
  return true;
}

Result<bool> TorchDialect::read_field(char kind) {
  if (kind == 'n' || kind == 'u') {
    const std::size_t size = kind == 'n' ? 8 : 4;
    if (rest().size() < size) return false;
    incoming_.number = static_cast<std::int64_t>(read_little(rest().substr(0, size)));
    consumed_ += size;
    return true;
  }
  if (rest().size() < 8) return false;
  const std::uint64_t length = read_little(rest().substr(0, 8));
  const std::size_t limit = kind == 'k' ? kMaxKeyBytes : kMaxValueBytes;
  if (length > limit) {
    return bad_torch(std::string(kind == 'k' ? "a key" : "a value") + " of " +
                     std::to_string(length) + " bytes is longer than " + std::to_string(limit));
  }
  if (incoming_.bytes + length > kMaxTorchRequestBytes) {
    return bad_torch("a request is longer than " + std::to_string(kMaxTorchRequestBytes) +
                     " bytes");
  }
  if (rest().size() < 8 + length) return false;
  incoming_.texts.emplace_back(rest().substr(8, length));
  incoming_.bytes += length;
  consumed_ += 8 + length;
  return true;
}

Result<void> TorchDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  buffer_.append(bytes);
  const Result<void> served = serve_all(now_ns, out);
  compact();
  return served;
}

Result<void> TorchDialect::serve_all(std::uint64_t now_ns, Replies& out) {
  has_more_ = false;
  if (dialect_ == Dialect::kUnknown && !IVY_TRY(recognize())) return {};
  Turn turn(out);
  while (true) {
    if (has_abandoned_wait()) end_abandoned_wait(now_ns, out);
    if (waiting_ != 0 && !next_is_cancel()) break;
    if (turn.over()) {
      has_more_ = true;
      return {};
    }
    if (!IVY_TRY(read_request())) return {};
    // In torch 2.1 the number of A's delete is an append, whose value follows the key. A client of
    // A sends nothing after a delete before it has received the answer.
    if (dialect_ == Dialect::kA && incoming_.op == TorchOp::kDelete && !rest().empty())
      return bad_torch(kTorch21);
    IVY_CHECK(serve(now_ns, out));
    incoming_ = {};
    turn.count();
  }
  has_more_ = !rest().empty();
  const TorchOp held_by = op_of(waiting_);
  const bool waits = held_by == TorchOp::kWait || held_by == TorchOp::kBarrier;
  if (rest().size() > (waits ? kMaxAfterTorchWait : kMaxTorchRequestBytes))
    return bad_torch("too many requests are queued behind one that waits");
  return {};
}

void TorchDialect::compact() {
  if (consumed_ == buffer_.size()) {
    // Release the memory of a large value now, not when the connection closes.
    if (buffer_.capacity() > kCompactBytes) buffer_ = {};
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > buffer_.size() / 2) {  // So each byte is moved once on average.
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
}

std::string TorchDialect::take_text(std::size_t index) { return std::move(incoming_.texts[index]); }

std::vector<std::pair<std::string, std::string>> TorchDialect::entries() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i + 1 < incoming_.texts.size(); i += 2)
    pairs.emplace_back(take_text(i), take_text(i + 1));
  return pairs;
}

Request TorchDialect::request_of(TorchOp op) {
  switch (op) {
    case TorchOp::kSet:
      return Set{take_text(0), take_text(1)};
    case TorchOp::kGet:
      // Does not wait: torch's client sends WAIT before it. A key that was deleted in between
      // yields an empty value, as in torch's libuv server (encode_error()); its legacy server
      // closes the connection.
      return Get{take_text(0), std::nullopt};
    case TorchOp::kAdd:
      return Add{take_text(0), incoming_.number};
    case TorchOp::kCheck:
      return Check{std::move(incoming_.texts)};
    case TorchOp::kWait:
      return Wait{std::move(incoming_.texts)};
    case TorchOp::kDelete:
      return Delete{take_text(0)};
    case TorchOp::kAppend:
      return Append{take_text(0), take_text(1)};
    case TorchOp::kMultiGet:
      return MultiGet{std::move(incoming_.texts)};
    case TorchOp::kMultiSet:
      return MultiSet{entries()};
    case TorchOp::kCompareSet:
      return CompareSet{take_text(0), take_text(1), take_text(2), true};
    case TorchOp::kQueuePush:
      return QueuePush{take_text(0), take_text(1)};
    case TorchOp::kQueuePop:
      return QueuePop{take_text(0), std::nullopt, true};
    case TorchOp::kQueueLength:
      return QueueLength{take_text(0)};
    case TorchOp::kListKeys:
      return List{};
    case TorchOp::kBarrier:
      return AddAndWait{take_text(0), incoming_.number};
    case TorchOp::kCancelWait:
      return Cancel{std::exchange(waiting_, 0), {}};
    case TorchOp::kWatchKey:
      return Watch{take_text(0), true};
    default:
      return Count{};
  }
}

Result<void> TorchDialect::serve(std::uint64_t now_ns, Replies& out) {
  if (client_ == 0) {
    ClientInfo info;
    info.space = Space::kTorch;
    info.generation = generation_;
    info.address = address_;
    client_ = IVY_TRY(engine_.join(std::move(info), now_ns));
  }
  const TorchOp op = *incoming_.op;
  switch (op) {
    case TorchOp::kValidate:
      if (incoming_.number != kValidateMagic)
        return bad_torch("the greeting has the wrong magic number");
      validated_ = true;
      return {};
    case TorchOp::kPing:
      engine_.describe(client_, static_cast<std::uint32_t>(incoming_.number));
      // The engine has no ping. The answer to an empty check is queued at the right position among
      // others.
      apply(op, Check{}, now_ns, out);
      if (std::holds_alternative<Number>(out.back().body))
        out.back().body = Number{incoming_.number};
      return {};
    case TorchOp::kWatchKey:
      IVY_CHECK(note_watch());
      break;
    default:
      break;
  }
  const std::size_t before = out.size();
  const RequestId id = apply(op, request_of(op), now_ns, out);
  for (std::size_t i = before; i < out.size(); ++i) {
    if (out[i].client == client_ && out[i].request == id) return {};
  }
  waiting_ = id;
  return {};
}

void TorchDialect::end_abandoned_wait(std::uint64_t now_ns, Replies& out) {
  given_up_.insert(waiting_);
  // Applied under VALIDATE's number, because no reply to VALIDATE is sent.
  apply(TorchOp::kValidate, Cancel{std::exchange(waiting_, 0), {}}, now_ns, out);
}

// Torch 2.1 uses this number for DELETE_KEY. A client of torch 2.0 watches keys on a connection
// that it uses for nothing else, so a watch after any other request comes from torch 2.1.
Result<void> TorchDialect::note_watch() {
  if (requests_ != watched_.size()) return bad_torch(kTorch21);
  const std::string& key = incoming_.texts[0];
  if (watched_.contains(key)) return bad_torch("key '" + shown_key(key) + "' is watched twice");
  watched_.try_emplace(key);
  unanswered_watches_.push_back(key);
  return {};
}

Result<void> TorchDialect::reply(const Reply& reply, std::string& bytes) {
  const TorchOp op = op_of(reply.request);
  if (reply.request == waiting_) waiting_ = 0;
  if (given_up_.erase(reply.request) > 0) return {};
  if (const auto* error = std::get_if<Error>(&reply.body)) return encode_error(op, *error, bytes);
  if (is_unanswered(op) || op == TorchOp::kValidate) return {};
  if (op == TorchOp::kWatchKey) return encode_watch(reply.body, bytes);
  return encode(op, reply.body, bytes);
}

Result<void> TorchDialect::encode_watch(const ReplyBody& body, std::string& bytes) {
  if (const auto* change = std::get_if<Changed>(&body)) return changed(*change, bytes);
  return watched_now(std::get<Compared>(body), bytes);
}

Result<void> TorchDialect::watched_now(const Compared& present, std::string& bytes) {
  watched_[unanswered_watches_.front()] = present.current;
  unanswered_watches_.pop_front();
  IVY_CHECK(count_watched(0, present.current ? present.current->size() : 0));
  bytes.push_back(kKeyWatched);
  return {};
}

Result<void> TorchDialect::changed(const Changed& change, std::string& bytes) {
  enum : char { kUpdated = 0, kCreated = 1, kDeleted = 2 };
  std::optional<std::string>& last = watched_[change.key];
  IVY_CHECK(count_watched(last ? last->size() : 0, change.value.size()));
  const bool deleted = change.kind == Changed::Kind::kDeleted;
  bytes.push_back(deleted ? kDeleted : last ? kUpdated : kCreated);
  put_bytes(bytes, change.key);
  put_bytes(bytes, last.value_or(std::string()));
  put_bytes(bytes, change.value);
  last = deleted ? std::nullopt : std::optional(change.value);
  return {};
}

TorchDialect::~TorchDialect() {
  if (client_ != 0) engine_.leave(client_);
}

std::size_t TorchDialect::kept_bytes() const {
  return buffer_.size() + incoming_.bytes + incoming_.texts.capacity() * sizeof(std::string) +
         watched_bytes_;
}

RequestId TorchDialect::apply(TorchOp op, Request request, std::uint64_t now_ns, Replies& out) {
  const RequestId id = request_id(++requests_, op);
  engine_.apply(client_, id, std::move(request), now_ns, out);
  return id;
}

bool TorchDialect::has_abandoned_wait() const {
  return dialect_ == Dialect::kA && waiting_ != 0 && op_of(waiting_) == TorchOp::kWait &&
         !rest().empty();
}

// Returns whether the next request is CANCEL_WAIT, the only one that may be read during a wait.
bool TorchDialect::next_is_cancel() const {
  return dialect_ == Dialect::kC && !rest().empty() &&
         static_cast<unsigned char>(rest()[0]) == static_cast<unsigned>(TorchOp::kCancelWait);
}

Result<void> TorchDialect::count_watched(std::size_t before, std::size_t after) {
  watched_bytes_ = watched_bytes_ - before + after;
  if (watched_bytes_ <= kMaxTorchRequestBytes) return {};
  return bad_torch("the values of watched keys are longer than " +
                   std::to_string(kMaxTorchRequestBytes) + " bytes");
}

}  // namespace ivy::store
