// The requests of clients to the store and its replies: values, the same for every dialect, for the
// engine and for a leaf in front of it. engine.h has the rules.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

using ClientId = std::uint64_t;
using RequestId = std::uint64_t;  // Unique among a client's open requests.
using SessionId = std::uint64_t;  // A client has one over all its connections; 0: it has none.

enum class Space : std::uint8_t { kNative, kTorch, kPmi };

struct ClientInfo {
  Space space = Space::kNative;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::uint32_t pid = 0;  // 0: unknown.
  std::string address;    // Where it connected from, for messages.
  bool is_leaf = false;   // A leaf's own client: left out of every Picture.
  SessionId session = 0;
};

// deadline_ns is on the clock of `now`; kNever means no timeout.
inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

// The number of a request that may be sent again, by a client with a session (answered_requests.h).
struct Numbered {
  std::uint64_t number = 0;  // 0: it is not repeated.
  std::uint64_t lowest = 0;  // 1 to number.
  bool again = false;        // It was sent before, over another connection.
};
struct Set {
  std::string key, value;
  bool once = false;  // AlreadyExists unless the value is the same.
  Numbered numbered = {};
};
struct Get {
  std::string key;
  std::optional<std::uint64_t> wait_until_ns;  // Nothing: NotFound at once.
};
struct Wait {
  std::vector<std::string> keys;
  std::uint64_t deadline_ns = kNever;
};
struct Check {
  std::vector<std::string> keys;
};
struct Add {
  std::string key;
  std::int64_t delta = 0;  // InvalidArgument if the value is no number, or would overflow.
};
struct CompareSet {
  std::string key;
  std::optional<std::string> expected;  // Nothing: the key must be missing.
  std::string desired;
  // torch's rules: an empty expectation also matches a missing key, and if the key is missing and
  // the expectation does not match, the answer is the expected value.
  bool as_torch = false;
};
struct Append {
  std::string key, value;
};
struct Delete {
  std::string key;
  Numbered numbered = {};
};
struct MultiGet {
  std::vector<std::string> keys;
};
struct MultiSet {
  std::vector<std::pair<std::string, std::string>> entries;
  Numbered numbered = {};
};
struct QueuePush {
  std::string key, value;
};
struct QueuePop {
  std::string key;
  std::optional<std::uint64_t> wait_until_ns;  // Nothing: NotFound at once.
  bool counted = false;                        // torch's rules: answered at once, with Popped.
};
struct QueueLength {
  std::string key;
};
struct List {
  std::string prefix;
  std::uint32_t limit = 0;
  std::string after;
};
struct Count {
  std::string prefix;
};
struct Barrier {
  std::string name;
  std::uint32_t size = 0;    // Fixed by a round's first member; may change between rounds.
  std::uint32_t member = 0;  // Below size. Counts once per round, however often it asks.
  std::uint64_t call = 0;  // Number of this arrival: a repeat after its round gets the same answer.
  std::uint64_t deadline_ns = kNever;
  // A client that is lost while it waits here ends the barrier for good: all members that wait and
  // all that come later are answered with the Number -1 - member.
  bool ends_with_a_loss = false;
};
struct AddAndWait {  // torch's BARRIER: add 1, answer when the number is at_least.
  std::string key;
  std::int64_t at_least = 0;
};
struct Watch {
  std::string prefix;
  bool exact = false;     // This key only; answered with Compared: its present value.
  bool one_shot = false;  // Ends with the first change. Exact ones only.
};
struct Cancel {
  RequestId request = 0;
  std::vector<RequestId> or_these = {};  // Cancels those of them that wait.
};
struct Why {};  // Answered with a Value: the wait graph as text.

using Request = std::variant<Set, Get, Wait, Check, Add, CompareSet, Append, Delete, MultiGet,
                             MultiSet, QueuePush, QueuePop, QueueLength, List, Count, Barrier,
                             AddAndWait, Watch, Cancel, Why>;

// Returns null if the request is of a kind that is never numbered.
inline Numbered* numbered_of(Request& request) {
  if (auto* set = std::get_if<Set>(&request)) return &set->numbered;
  if (auto* many = std::get_if<MultiSet>(&request)) return &many->numbered;
  if (auto* gone = std::get_if<Delete>(&request)) return &gone->numbered;
  return nullptr;
}

struct Done {};
struct Value {
  std::string bytes;
};
struct Values {
  std::vector<std::string> bytes;
};
struct Number {
  std::int64_t value = 0;
};
struct Compared {
  bool stored = false;
  std::optional<std::string> current;  // Nothing: the key is missing.
};
struct Keys {
  std::vector<std::string> keys;
  bool more = false;
};
struct Popped {  // `length` is the queue's before the pop.
  std::int64_t length = 0;
  std::optional<std::string> item;
};
struct Changed {  // A change that a watch reports; the request stays open. A session whose client
                  // does not read sends one kOverflow instead and cancels the watch.
  enum class What : std::uint8_t { kSet = 1, kDeleted = 2, kOverflow = 3 };
  What what = What::kSet;
  std::string key, value;
};

struct Reply {
  ClientId client = 0;
  RequestId request = 0;
  std::variant<Done, Value, Values, Number, Compared, Keys, Changed, Error, Popped> body;
};
using Replies = std::vector<Reply>;

// A connection's turn ends when its requests and replies have cost this much; it gets another one
// (has_more) when its replies have left. So no client fills the memory or holds up the others by
// sending much at once. A request costs kRequestCost and the bytes of the replies.
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

}  // namespace ivy::store
