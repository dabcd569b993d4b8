// SPDX-License-Identifier: Apache-2.0
// Forms a world of the job's ranks: each stores its address and properties of its machine, waits
// for the others and reads their records. The ranks of one host create shared memory.
//
// Use from one thread; call form() once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/caches.h"
#include "comm/contract/failure.h"
#include "comm/contract/member.h"
#include "comm/group/world/control_client.h"
#include "comm/join/identity.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/shm/shared_segment.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

// Properties that all ranks of this machine have agreed on.
struct MachineFacts {
  // Each rank has a processor to itself, so that all can run at the same time. Only then do waits
  // spin.
  bool has_processor_each = true;
  bool is_overloaded = false;  // There are more than two ranks per processor.
  Caches caches;
};

// Parts of the communicator of all ranks.
struct World {
  std::vector<Member> members;
  std::int32_t self = 0;
  std::shared_ptr<SharedSegment> segment;  // Null if no other rank is on this host.
  std::vector<std::int32_t> local_ranks;   // The ranks that share this memory.
  std::chrono::milliseconds timeout{0};
  MachineFacts machine;
  // The same on all its ranks, and different from every other world of the job.
  std::string world_id;
};

// The repair for which a world is formed (repair.h). Implemented by world_repairs.cc.
class RepairAttempt {
 public:
  virtual ~RepairAttempt() = default;
  // World::world_id.
  virtual std::string world_id() const = 0;
  // Returns this process's rank as assigned by the launcher.
  virtual std::uint32_t job_rank() const = 0;
  // Called while ranks wait for each other. Returns why the world cannot be formed, or nothing if
  // it still can.
  virtual std::optional<Error> find_repair_error() = 0;
  // Called once with this rank's result (`is_death`: a rank has died). Returns the result that all
  // ranks share.
  virtual Result<void> conclude(const Result<void>& formed, bool is_death) = 0;
};

// This process's inputs to the formation, all of which outlive it.
struct FormationInputs {
  const Identity& identity;  // This process's rank and the size are those of the world to form.
  std::chrono::milliseconds timeout;
  std::uint32_t earlier_joins;      // Number of times that this process has joined before.
  store::Client* store;             // Null in a world of one.
  ControlClient* control;           // Null if there is no supervisor.
  PeerConnections* connections;     // Null if all ranks are on one host.
  RepairAttempt* repair = nullptr;  // Null for the first world of these processes.
};

class WorldFormation {
 public:
  explicit WorldFormation(const FormationInputs& inputs);

  // Collective over all ranks: waits for them; an error names the missing ones.
  Result<World> form();
  // The death that made form() fail, or nothing if it failed for another reason.
  const MaybeFailure& death() const { return death_; }

  // Returns the prefix of that world's keys in the store.
  static std::string prefix_of(const std::string& world_id) { return "ivycomm/" + world_id + "/"; }

 private:
  struct MemberText;

  // The steps of form(), in the order in which they are called.
  Result<void> form_locally();
  Result<void> form_single();  // Makes a world of one.
  // exchange_members(), while a thread watches for the death of a rank.
  Result<void> watched_exchange();
  // Stores this rank's record, waits for all ranks, and reads their records.
  Result<void> exchange_members();
  std::string own_member() const;
  Result<void> wait_for_all_ranks();
  Result<void> read_members(const std::vector<MemberText>& texts);
  // Create the memory that the ranks of this host share.
  Result<std::unique_ptr<SharedSegment>> segment_of_supervisor() const;
  Result<std::unique_ptr<SharedSegment>> segment_by_name();

  std::string member_key(std::uint64_t rank) const;
  Result<void> wait_at_barrier(const std::string& name);
  // Calls wait(), which waits briefly at the store, until it succeeds, there is a reason to give
  // up, or the timeout expires. `detector` may be null.
  template <class Wait>
  auto wait_and_check(FailureDetector* detector, Wait wait)
      -> decltype(wait(std::chrono::milliseconds()));
  // Returns why the world cannot be formed: the repair's reason, or a death that `detector` has
  // seen.
  std::optional<Error> find_formation_error(FailureDetector* detector);
  // Stores the death, for death(), and returns it as an error.
  Error give_up(const Failure& death);

  const FormationInputs inputs_;
  std::string first_world_id_;  // World::world_id before the ranks have synchronized.
  World world_;
  MaybeFailure death_;
};

}  // namespace ivy::comm
