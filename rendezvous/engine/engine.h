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

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/engine/journal.h"
#include "rendezvous/engine/picture.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

struct EngineState;

// What connections put their requests to: the engine, or a leaf in front of one (leaf.h), which
// answers later what an engine answers at once. Everything is said where Engine declares it.
class StoreFront {
 public:
  virtual ~StoreFront() = default;
  virtual Result<ClientId> join(ClientInfo info, std::uint64_t now_ns) = 0;
  virtual void leave(ClientId client) = 0;
  virtual void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) = 0;
  virtual void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
                     Replies& out) = 0;
  virtual std::uint64_t advance(std::uint64_t now_ns, Replies& out) = 0;
  virtual void end_watch(ClientId client, RequestId request) = 0;
  virtual void begin_generation(std::uint32_t generation, Replies& out) = 0;
  virtual std::uint32_t generation() const = 0;
  virtual std::uint64_t changes() const = 0;
  // False: what it was asked has not left yet; nobody is read until it has.
  virtual bool takes_more() const { return true; }
};

class Engine : public StoreFront {
 public:
  explicit Engine(EngineLimits limits = {});
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A client is there. FailedPrecondition when its generation is not the present one.
  Result<ClientId> join(ClientInfo info, std::uint64_t now_ns) override;
  // It is gone: its waits are forgotten, its watches end; what it wrote stays. Who is to hear of
  // that does at the next advance().
  void leave(ClientId client) override;
  // Learned later (torch's ping tells a pid).
  void describe(ClientId client, std::uint32_t pid, std::optional<std::uint32_t> rank) override;

  // Every reply that this request causes, its own and those of clients that waited for it, in the
  // order in which they must be sent. A client's requests are answered in order unless they wait.
  void apply(ClientId client, RequestId request, Request body, std::uint64_t now_ns,
             Replies& out) override;
  // Answers what is due with DeadlineExceeded, which names the missing keys and how long, and who
  // does not wait for them and has been silent for how long (of very many at once, some do). The
  // next time at which something will be due, or kNever.
  std::uint64_t advance(std::uint64_t now_ns, Replies& out) override;

  // As a Cancel of it, without an answer.
  void end_watch(ClientId client, RequestId request) override;
  void begin_generation(std::uint32_t generation, Replies& out) override;
  std::uint32_t generation() const override;

  // Of leaves. The value of a key that will keep it until somebody removes it or writes it in
  // another way: one that was set once, or one of those below in write_once_by_name(). Null: none
  // such.
  const std::string* lasting_value(Space space, const std::string& key) const;
  // These wait for the same as that request, of another client, and have since then. Replaces what
  // was said before of that request, and ends with it.
  void set_companions(ClientId client, RequestId request, std::vector<Companion> companions);

  // Without `asker`, who asks for it, when it has asked for nothing else: it is nobody's peer.
  Picture picture(ClientId asker = 0) const;
  std::size_t bytes() const;
  std::size_t key_count() const;
  std::size_t open_requests() const;
  std::size_t waiting_bytes() const;
  // Grows with every write and every wait that was satisfied: whether the job gets on.
  std::uint64_t changes() const override;
  // Requests that were applied, those of leaves for themselves (FOLLOW) included.
  std::uint64_t requests() const;
  void count_request();

  // From now on; nullptr: to nobody. It outlives the engine, or is taken away.
  void journal_to(Journal* journal);
  // Does once more what one record says, before any client has come. DataLoss: these are no
  // effects, or of other contents; the engine is of no use then.
  Result<void> replay(std::string_view effects);
  // The next piece of about most_bytes of everything that is kept, as records whose replay in a new
  // engine gives the same contents. Changes between two pieces: covered_effects (effect.h).
  void snapshot(SnapshotCursor& cursor, std::size_t most_bytes,
                std::vector<std::string>& records) const;

 private:
  std::unique_ptr<EngineState> state_;
};

}  // namespace ivy::store
