// SPDX-License-Identifier: Apache-2.0
// The store's requests and replies as values, the same for every dialect, for the engine and for
// the client. engine.h has the rules.
//
// Each request is a struct that declares its command (names and numbers), its answer, its fields in
// wire order, and the function with which the engine executes it. dialects/codec.h converts the
// fields to bytes and back. They follow the frame's head (proto/wire/store_wire.h) and, for the op
// that `waits`, its timeout: a u64 in milliseconds, unless has_timeout is false.
//
// The native dialect also has PING (text, answered with the same text) and CANCEL (u32 id of a
// request, which is first answered with Cancelled).
//
// A client that may repeat a SET, SET_ONCE, MULTI_SET or DELETE adds kNumberedOp to the op and puts
// before everything else: u64 number, from 1 within its session (handshake.h) | u64 lowest
// unanswered number | u8 1 if it was sent before. The store executes such a request only once.
//
// Pure. Thread: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

using ClientId = std::uint64_t;
using RequestId = std::uint64_t;  // Unique among a client's open requests.
using SessionId = std::uint64_t;  // The same for all connections of a client; 0 if it has none.

enum class Space : std::uint8_t { kNative, kTorch };
inline constexpr std::size_t kSpaces = 2;

struct ClientInfo {
  Space space = Space::kNative;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::uint32_t pid = 0;  // 0 if unknown.
  std::string address;    // The client's address, for messages.
  SessionId session = 0;
};

// The request's number in the native dialect.
enum class Op : std::uint8_t {
  kNone = 0,  // The native dialect lacks this request.
  kSet = 1,
  kSetOnce = 2,
  kGet = 3,
  kWait = 4,
  kWaitGet = 5,
  kCheck = 6,
  kAdd = 7,
  kCompareSet = 8,
  kAppend = 9,
  kDelete = 10,
  kMultiGet = 11,
  kMultiSet = 12,
  kQueuePush = 13,
  kQueuePop = 14,
  kQueueLength = 15,
  kList = 16,
  kCount = 17,
  kBarrier = 18,
  kWatch = 19,
  kCancel = 20,
  kPing = 21,
  kWhy = 22,
};
inline constexpr std::uint8_t kNumberedOp = 0x80;

// A member without a default: an initializer that leaves it out does not compile.
template <class T>
struct Required {
  constexpr Required(T given) : value(given) {}
  constexpr operator T() const { return value; }
  T value;
};

// The properties that all requests of a kind share.
struct Command {
  const char* name;  // The name in the wait graph.
  Op op = Op::kNone;
  Op other = Op::kNone;     // Second number, of a Set that is `once` or of a Get that waits.
  Op waits = Op::kNone;     // The one of these two numbers that may wait, so that CANCEL ends it.
  bool has_timeout = true;  // The op that `waits` carries a timeout.
  // The request may change the keys that it names. After a lost connection, the client sends a
  // request again if this is false or if it is Numbered.
  Required<bool> writes;
  bool is_yes_no = false;  // The answer is the Number 0 or 1, natively a u8.
};

// Deadlines are on the clock of `now_ns`; kNever means no timeout.
inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

// Number of a request that may be repeated, from a client with a session (answered_requests.h).
struct Numbered {
  std::uint64_t number = 0;  // 0 if the request is never repeated.
  std::uint64_t lowest = 0;  // The lowest unanswered number, between 1 and `number`.
  bool again = false;        // The request was sent before, over another connection.
};

// Passes the fields of `self` to a visitor `f`, in wire order. They are mutable for a decoder and
// const for an encoder.
#define IVY_FIELDS(...)                                                         \
  template <class Fields, class Self>                                           \
  static void fields([[maybe_unused]] Fields& f, [[maybe_unused]] Self& self) { \
    __VA_ARGS__;                                                                \
  }

struct Done {
  IVY_FIELDS()
};
struct Value {
  std::string bytes;
  IVY_FIELDS(f.text(self.bytes))
};
struct Values {  // Natively without a count, which equals the number of requested keys.
  std::vector<std::string> bytes;
  IVY_FIELDS(f.values(self.bytes))
};
struct Number {
  std::int64_t value = 0;
  IVY_FIELDS(f.answer(self.value))
};
struct Compared {
  bool stored = false;
  std::optional<std::string> current;  // Empty if the key is missing.
  IVY_FIELDS(f.flag(self.stored), f.optional_text(self.current))
};
struct Keys {
  std::vector<std::string> keys;
  bool more = false;
  IVY_FIELDS(f.page(self.keys, self.more))
};
struct Changed {  // A change that a watch reports; the request stays open. If the client does not
                  // read, the server sends one kOverflow instead and cancels the watch.
  enum class Kind : std::uint8_t { kSet = 1, kDeleted = 2, kOverflow = 3 };
  Kind kind = Kind::kSet;
  std::string key, value;
  IVY_FIELDS(f.kind(self.kind), f.text(self.key), f.text(self.value))
};
struct Popped {  // `length` is the queue's length before the pop.
  std::int64_t length = 0;
  std::optional<std::string> item;
  IVY_FIELDS(f.number(self.length), f.optional_text(self.item))
};
using ReplyBody = std::variant<Done, Value, Values, Number, Compared, Keys, Changed, Error, Popped>;
struct Reply {
  ClientId client = 0;
  RequestId request = 0;
  ReplyBody body;
};
using Replies = std::vector<Reply>;

template <class Body>
void answer_to(ClientId client, RequestId request, Body body, Replies& out) {
  Reply& reply = out.emplace_back();
  reply.client = client;
  reply.request = request;
  reply.body = std::move(body);
}

struct Serving;  // serving.h: a request during its execution.

// The members of every request: the type of its answer, its fields, and the function that executes
// it.
#define IVY_REQUEST(Kind, ...) \
  using Answer = Kind;         \
  IVY_FIELDS(__VA_ARGS__)      \
  void serve(Serving& here)&&;

struct Set {
  static constexpr Command kCommand{
      .name = "set", .op = Op::kSet, .other = Op::kSetOnce, .writes = true};
  IVY_REQUEST(Done, f.key(self.key), f.text(self.value), f.by_op(self.once))
  std::string key, value;
  bool once = false;  // If set, fails with AlreadyExists if the key has a different value.
  Numbered numbered = {};
};
struct Get {
  static constexpr Command kCommand{
      .name = "get", .op = Op::kGet, .other = Op::kWaitGet, .waits = Op::kWaitGet, .writes = false};
  IVY_REQUEST(Value, f.key(self.key), f.optional_deadline(self.wait_until_ns))
  std::string key;
  // If empty, a missing key fails immediately with NotFound.
  std::optional<std::uint64_t> wait_until_ns;
};
struct Wait {
  static constexpr Command kCommand{
      .name = "wait", .op = Op::kWait, .waits = Op::kWait, .writes = false};
  IVY_REQUEST(Done, f.keys(self.keys), f.deadline(self.deadline_ns))
  std::vector<std::string> keys;
  std::uint64_t deadline_ns = kNever;
};
struct Check {
  static constexpr Command kCommand{
      .name = "check", .op = Op::kCheck, .writes = false, .is_yes_no = true};
  IVY_REQUEST(Number, f.keys(self.keys))
  std::vector<std::string> keys;
};
struct Add {
  static constexpr Command kCommand{.name = "add", .op = Op::kAdd, .writes = true};
  IVY_REQUEST(Number, f.key(self.key), f.number(self.delta))
  std::string key;
  // Fails with InvalidArgument if the value is not a number or would overflow.
  std::int64_t delta = 0;
};
struct CompareSet {
  static constexpr Command kCommand{.name = "compare_set", .op = Op::kCompareSet, .writes = true};
  IVY_REQUEST(Compared, f.key(self.key), f.optional_text(self.expected), f.text(self.desired))
  std::string key;
  std::optional<std::string> expected;  // If empty, the key must be missing.
  std::string desired;
  // Applies torch's rules: an empty expectation also matches a missing key; if the key is missing
  // and the expectation does not match, the answer is the expected value.
  bool as_torch = false;
};
struct Append {
  static constexpr Command kCommand{.name = "append", .op = Op::kAppend, .writes = true};
  IVY_REQUEST(Number, f.key(self.key), f.text(self.value))
  std::string key, value;
};
struct Delete {
  static constexpr Command kCommand{
      .name = "delete", .op = Op::kDelete, .writes = true, .is_yes_no = true};
  IVY_REQUEST(Number, f.key(self.key))
  std::string key;
  Numbered numbered = {};
};
struct MultiGet {
  static constexpr Command kCommand{.name = "multi_get", .op = Op::kMultiGet, .writes = false};
  IVY_REQUEST(Values, f.keys(self.keys))
  std::vector<std::string> keys;
};
struct MultiSet {
  static constexpr Command kCommand{.name = "multi_set", .op = Op::kMultiSet, .writes = true};
  IVY_REQUEST(Done, f.entries(self.entries))
  std::vector<std::pair<std::string, std::string>> entries;
  Numbered numbered = {};
};
struct QueuePush {
  static constexpr Command kCommand{.name = "queue_push", .op = Op::kQueuePush, .writes = true};
  IVY_REQUEST(Number, f.key(self.key), f.text(self.value))
  std::string key, value;
};
struct QueuePop {
  static constexpr Command kCommand{
      .name = "queue_pop", .op = Op::kQueuePop, .waits = Op::kQueuePop, .writes = true};
  IVY_REQUEST(Value, f.key(self.key), f.optional_deadline(self.wait_until_ns))
  std::string key;
  // If empty, an empty queue fails immediately with NotFound.
  std::optional<std::uint64_t> wait_until_ns;
  bool counted = false;  // Applies torch's rules: answered immediately, with Popped.
};
struct QueueLength {
  static constexpr Command kCommand{.name = "queue_len", .op = Op::kQueueLength, .writes = false};
  IVY_REQUEST(Number, f.key(self.key))
  std::string key;
};
struct List {
  static constexpr Command kCommand{.name = "list", .op = Op::kList, .writes = false};
  IVY_REQUEST(Keys, f.key(self.prefix), f.number(self.limit), f.text(self.after))
  std::string prefix;
  std::uint32_t limit = 0;  // 0 lists as many keys as fit into one reply.
  std::string after;        // Lists only keys that sort after this one.
};
struct Count {
  static constexpr Command kCommand{.name = "count", .op = Op::kCount, .writes = false};
  IVY_REQUEST(Number, f.key(self.prefix))
  std::string prefix;
};
struct Barrier {  // Answered with the round's number, from 1.
  static constexpr Command kCommand{
      .name = "barrier", .op = Op::kBarrier, .waits = Op::kBarrier, .writes = false};
  IVY_REQUEST(Number, f.key(self.name), f.number(self.size), f.number(self.member),
              f.number(self.call), f.deadline(self.deadline_ns), f.last_flag(self.ends_with_a_loss))
  std::string name;
  std::uint32_t size = 0;    // Fixed by a round's first member; may change between rounds.
  std::uint32_t member = 0;  // Below `size`. Counts once per round, however often it is sent.
  std::uint64_t call = 0;  // Number of this arrival: a repeat after its round gets the same answer.
  std::uint64_t deadline_ns = kNever;
  // If a client that waits here disconnects, the barrier ends permanently: all waiting and all
  // later members are answered with the Number -1 - member.
  bool ends_with_a_loss = false;
};
struct AddAndWait {  // torch's BARRIER: adds 1, answers when the number is at least at_least.
  static constexpr Command kCommand{.name = "add_and_wait", .writes = true};
  IVY_REQUEST(Done, f.key(self.key), f.number(self.at_least))
  std::string key;
  std::int64_t at_least = 0;
};
struct Watch {  // Answered with Done, then with one Changed per change.
  static constexpr Command kCommand{.name = "watch",
                                    .op = Op::kWatch,
                                    .waits = Op::kWatch,
                                    .has_timeout = false,
                                    .writes = false};
  IVY_REQUEST(Done, f.key(self.prefix))
  std::string prefix;
  bool exact = false;  // Watches this key only; answered with Compared: its current value.
};
struct Cancel {  // Has no Op: native_dialect.cc decodes the native CANCEL itself.
  static constexpr Command kCommand{.name = "cancel", .writes = false};
  IVY_REQUEST(Done)
  RequestId request = 0;
  std::vector<RequestId> or_these = {};  // Cancels each of these that waits.
};
struct Why {  // Answered with the wait graph as text.
  static constexpr Command kCommand{.name = "why", .op = Op::kWhy, .writes = false};
  IVY_REQUEST(Value)
};
using Request = std::variant<Set, Get, Wait, Check, Add, CompareSet, Append, Delete, MultiGet,
                             MultiSet, QueuePush, QueuePop, QueueLength, List, Count, Barrier,
                             AddAndWait, Watch, Cancel, Why>;

// The commands of all requests, in the order of `Request`.
inline constexpr auto kCommands = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
  return std::array{std::variant_alternative_t<kIndex, Request>::kCommand...};
}
(std::make_index_sequence<std::variant_size_v<Request>>());

inline const Command& command_of(const Request& request) {
  return std::visit([](const auto& kind) -> const Command& { return kind.kCommand; }, request);
}

// Returns null if the kind of request is never numbered.
template <class AnyRequest>
auto numbered_of(AnyRequest& request) {
  using Found = std::conditional_t<std::is_const_v<AnyRequest>, const Numbered*, Numbered*>;
  return std::visit(
      [](auto& kind) -> Found {
        if constexpr (requires { kind.numbered; }) {
          return &kind.numbered;
        } else {
          return nullptr;
        }
      },
      request);
}

// Collects the keys that a request names, in order, including prefixes and names of barriers, as a
// visitor of its fields. Holds pointers into the request.
class NamedKeys {
 public:
  explicit NamedKeys(const Request& request) {
    std::visit([this](const auto& kind) { kind.fields(*this, kind); }, request);
  }
  // Returns null if the request names no key.
  const std::string* first() const {
    if (many_ != nullptr && !many_->empty()) return &many_->front();
    if (pairs_ != nullptr && !pairs_->empty()) return &pairs_->front().first;
    return one_;
  }
  std::vector<std::string> all() const {
    std::vector<std::string> names;
    if (one_ != nullptr) names.push_back(*one_);
    if (many_ != nullptr) names = *many_;
    if (pairs_ != nullptr)
      for (const auto& [key, value] : *pairs_) names.push_back(key);
    return names;
  }

  void key(const std::string& name) { one_ = &name; }
  void keys(const std::vector<std::string>& names) { many_ = &names; }
  void entries(const std::vector<std::pair<std::string, std::string>>& pairs) { pairs_ = &pairs; }
  void text(const std::string&) {}
  void optional_text(const std::optional<std::string>&) {}
  void by_op(bool) {}
  void last_flag(bool) {}
  void number(std::int64_t) {}
  void number(std::uint64_t) {}
  void number(std::uint32_t) {}
  void deadline(std::uint64_t) {}
  void optional_deadline(const std::optional<std::uint64_t>&) {}

 private:
  const std::string* one_ = nullptr;
  const std::vector<std::string>* many_ = nullptr;
  const std::vector<std::pair<std::string, std::string>>* pairs_ = nullptr;
};

// A connection's turn ends when its requests and replies have cost this much; it gets another turn
// (has_more) after its replies were sent. This prevents a client that sends much at once from
// filling the memory or delaying others. A request costs kRequestCost plus the bytes of its
// replies.
inline constexpr std::size_t kTurnBytes = 1u << 20;
inline constexpr std::size_t kRequestCost = 256;
std::size_t cost_of(const Reply& reply);

// The cost of one turn so far.
class Turn {
 public:
  explicit Turn(const Replies& replies) : replies_(replies), counted_(replies.size()) {}
  bool over() const { return cost_ >= kTurnBytes; }
  // Call it after each request.
  void count() {
    cost_ += kRequestCost;
    for (; counted_ < replies_.size(); ++counted_) cost_ += cost_of(replies_[counted_]);
  }

 private:
  const Replies& replies_;
  std::size_t counted_;
  std::size_t cost_ = 0;
};

#undef IVY_REQUEST
#undef IVY_FIELDS

}  // namespace ivy::store
