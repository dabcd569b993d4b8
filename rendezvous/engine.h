// The store's contents and rules, as a state machine: a request and a time go in, replies come out.
// No socket, no clock, no thread; the same requests in the same order give the same replies.
//
// Values are bytes. A missing key waits or is NotFound, never an empty value. Numbers (add) are
// kept as ASCII decimals in the same keys, as torch does, so a get after an add sees "3".
//
// Generations: a client belongs to the generation that it named. begin_generation(g) forgets every
// key, queue, barrier and waiter of the one before; its clients get Aborted for what they wait for
// and FailedPrecondition for what they ask from then on. So nothing that was written in generation
// g can be read in g + 1.
//
// Spaces: each dialect has keys of its own, so a framework's keys and ours never meet.
//
// Pure. Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "proto/status.h"
#include "proto/store_wire.h"

namespace ivy::store {

using ClientId = std::uint64_t;
using RequestId = std::uint64_t;  // Unique among a client's open requests.

enum class Space : std::uint8_t { kNative, kTorch, kPmi };

struct ClientInfo {
  Space space = Space::kNative;
  std::uint32_t generation = 0;
  std::optional<std::uint32_t> rank;
  std::uint32_t pid = 0;  // 0: unknown.
  std::string address;    // Where it connected from, for messages.
};

// ---- Requests -----------------------------------------------------------------------------------
// deadline_ns: on the clock of `now`; kNever waits for ever.
inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

struct Set {
  std::string key, value;
  bool once = false;  // AlreadyExists unless the value is the same.
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
  std::int64_t delta =
      0;  // InvalidArgument on a value that is no number, or when it would overflow.
};
struct CompareSet {
  std::string key;
  std::optional<std::string> expected;  // Nothing: must be missing.
  std::string desired;
};
struct Append {
  std::string key, value;
};
struct Delete {
  std::string key;
};
struct MultiGet {
  std::vector<std::string> keys;
};
struct MultiSet {
  std::vector<std::pair<std::string, std::string>> entries;
};
struct QueuePush {
  std::string key, value;
};
struct QueuePop {
  std::string key;
  std::optional<std::uint64_t> wait_until_ns;  // Nothing: NotFound at once.
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
  std::uint32_t size = 0;    // May change between rounds; within one it is the first member's.
  std::uint32_t member = 0;  // Below size. Counts once per round, however often it asks.
  std::uint64_t call = 0;    // Of this arrival: asked again after its round, it is answered again.
  std::uint64_t deadline_ns = kNever;
};
struct AddAndWait {  // torch's BARRIER: add 1, answer when the number is at_least.
  std::string key;
  std::int64_t at_least = 0;
};
struct Watch {
  std::string prefix;
  bool exact = false;  // Of this key only.
};
struct Cancel {
  RequestId request = 0;
};

using Request =
    std::variant<Set, Get, Wait, Check, Add, CompareSet, Append, Delete, MultiGet, MultiSet,
                 QueuePush, QueuePop, QueueLength, List, Count, Barrier, AddAndWait, Watch, Cancel>;

// ---- Replies ------------------------------------------------------------------------------------
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
  std::optional<std::string> current;  // Nothing: missing.
};
struct Keys {
  std::vector<std::string> keys;
  bool more = false;
};
struct Changed {  // A watch's; the request stays open. A session whose client does not read sends
                  // one kOverflow instead and cancels the watch.
  enum class What : std::uint8_t { kSet = 1, kDeleted = 2, kOverflow = 3 };
  What what = What::kSet;
  std::string key, value;
};

struct Reply {
  ClientId client = 0;
  RequestId request = 0;
  std::variant<Done, Value, Values, Number, Compared, Keys, Changed, Error> body;
};
using Replies = std::vector<Reply>;

// A connection's turn ends when what it has caused costs this much; it is given another one
// (has_more) when its replies have left. So no client fills the memory or holds up the others by
// sending much at once. A request costs kRequestCost and the bytes of the replies.
inline constexpr std::size_t kTurnBytes = 1u << 20;
inline constexpr std::size_t kRequestCost = 256;
std::size_t cost_of(const Reply& reply);

// ---- Who waits for whom -------------------------------------------------------------------------
struct Waiting {
  ClientInfo client;
  std::string what;                  // "wait", "barrier 'x' of 8", "queue".
  std::vector<std::string> missing;  // Keys, at most 16; for a barrier: nothing.
  std::size_t missing_count = 0;
  std::vector<std::uint32_t> absent;  // Barrier: members that have not come, at most 16.
  std::uint64_t since_ns = 0;
};
struct Seen {  // A client's last sign of life.
  ClientInfo client;
  std::uint64_t last_ns = 0;
  std::string last_what;  // "set /default_pg/0//cuda//0"
};
struct Picture {
  std::vector<Waiting> waiting;
  std::vector<Seen> clients;
};

struct EngineLimits {
  std::size_t store_bytes = kMaxStoreBytes;
  std::size_t keys = kMaxKeys;
  std::size_t waits_per_client = 4096;
  std::size_t watches_per_client = 1024;  // Every write looks at all of them.
  // Keys that requests wait for, kept until they are answered.
  std::size_t waiting_bytes_per_client = 64u << 20;
  std::size_t waiting_bytes = 1u << 30;
};

class Engine {
 public:
  explicit Engine(EngineLimits limits = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A client is there. FailedPrecondition when its generation is not the present one.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns);
  // It is gone: its waits are forgotten, its watches end; what it wrote stays.
  void leave(ClientId client);
  // Learned later (torch's ping tells a pid).
  void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank);

  // Every reply that this request causes, its own and those of clients that waited for it, in the
  // order in which they must be sent. A client's requests are answered in order unless they wait.
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns, Replies& out);
  // Answers what is due with DeadlineExceeded, which names the missing keys and how long, and who
  // does not wait for them and has been silent for how long (of very many at once, some do). The
  // next time at which something will be due, or kNever.
  std::uint64_t advance(std::uint64_t now_ns, Replies& out);

  // As a Cancel of it, without an answer.
  void end_watch(ClientId client, RequestId request);
  void begin_generation(std::uint32_t generation, Replies& out);
  std::uint32_t generation() const;

  // Without `asker`, who asks for it, when it has asked for nothing else: it is nobody's peer.
  Picture picture(ClientId asker = 0) const;
  std::size_t bytes() const;
  std::size_t key_count() const;
  std::size_t open_requests() const;
  std::size_t waiting_bytes() const;
  // Grows with every write and every wait that was satisfied: whether the job gets on.
  std::uint64_t changes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ivy::store
