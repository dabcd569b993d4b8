// This process's place in the job: the store, the supervisor's control socket, and the world
// communicator that comes out of both.
//
// Thread: any after join(). Lifetime: outlives every communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/control_client.h"
#include "comm/identity.h"
#include "comm/transports/peer_listener.h"
#include "proto/status.h"
#include "rendezvous/client.h"

namespace ivy::comm {

// The last operations that a rank entered on a communicator.
struct EnteredOperations {
  static constexpr std::size_t kKept = 8;
  std::uint64_t sequence = 0;       // Of the last one.
  Fingerprint fingerprints[kKept];  // By sequence % kKept.
  std::int32_t rank = -1;           // In the communicator.
  std::int32_t zero = 0;

  void enter(std::uint64_t number, const Fingerprint& fingerprint) {
    sequence = number;
    fingerprints[number % kKept] = fingerprint;
  }
};

class Job {
 public:
  // Dials the store and the supervisor. Waits for nobody else.
  static Result<std::unique_ptr<Job>> join(Identity identity, std::chrono::milliseconds timeout);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Collective over all ranks; waits for them, and names those who did not come.
  Result<std::unique_ptr<Communicator>> make_world();

  const Identity& identity() const { return identity_; }
  store::Client* store() const { return store_.get(); }       // Null: a world of one.
  ControlClient* control() const { return control_.get(); }   // Null: no supervisor.
  PeerListener* listener() const { return listener_.get(); }  // Null: all ranks are on one host.
  // Can every rank of this machine run at once? Only then waits spin.
  bool has_processor_each() const;
  std::unique_ptr<Alarm> make_alarm(const std::string& communicator, const std::vector<Seat>& seats,
                                    std::int32_t self) const;
  // What every rank of a communicator has to know; to the supervisor, if there is one.
  void report(const Failure& failure, const std::string& communicator);
  // Why a communicator that spans hosts is broken, by the first of its ranks to say so: this one's
  // finding, unless another rank's is there. Under a supervisor the finding itself: its page is
  // what everybody sees.
  Failure agree(const Failure& failure, const std::string& communicator);
  // Tells the store what this rank, which waits between hosts, has entered, and compares with what
  // another rank said. Nothing: the same where both know, or nobody has said anything.
  std::optional<Failure> compare(const std::string& communicator, const EnteredOperations& own);
  // A row of the status page for a communicator; nothing: all are taken, or there is no page.
  std::optional<std::uint32_t> take_row(const std::string& communicator);
  void give_back_row(std::uint32_t row);
  // A name in the store that is this world's alone.
  std::string key(const std::string& name) const;

 private:
  Job(Identity identity, std::chrono::milliseconds timeout);
  Result<std::vector<Seat>> exchange_seats();
  std::optional<Failure> find_agreed(const std::string& communicator) const;
  Result<std::unique_ptr<SharedSegment>> share_world_segment(
      const std::vector<std::int32_t>& local);

  const Identity identity_;
  const std::chrono::milliseconds timeout_;
  const std::uint32_t joined_;  // How many times this process has joined before: part of all keys.
  std::uint32_t ranks_on_machine_ = 1;
  std::unique_ptr<store::Client> store_;
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<PeerListener> listener_;
  std::mutex rows_mutex_;
  std::vector<bool> rows_;
};

// Builds the local part of a communicator from a segment; shared by world and groups.
struct LocalPart {
  std::unique_ptr<Alarm> alarm;
  std::unique_ptr<SharedGroup> group;  // Null: nobody else is on this host.
};
LocalPart make_local_part(const Job& job, const std::string& communicator,
                          const std::vector<Seat>& seats, std::int32_t self,
                          std::unique_ptr<SharedSegment> segment);

// Ranks of `seats` on the same host as `self`, in order.
std::vector<std::int32_t> local_ranks(const std::vector<Seat>& seats, std::int32_t self);

}  // namespace ivy::comm
