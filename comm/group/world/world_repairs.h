// SPDX-License-Identifier: Apache-2.0
// This process's part in repairs of its world: its state of the last world, and attempts, one after
// the other, until a world is formed (repair.h).
//
// Thread: one; interrupt() from any. Lifetime: identity, store and control must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/member.h"
#include "comm/group/world/control_client.h"
#include "comm/group/world/repair.h"
#include "comm/group/world/world_formation.h"
#include "comm/join/identity.h"

namespace ivy::comm {

// Forms a world of the members decided by a repair. Implemented by JobMember.
class WorldFactory {
 public:
  virtual ~WorldFactory() = default;
  // This process is identity.rank of identity.world_size.
  virtual Result<World> form_repaired(const Identity& identity, std::chrono::milliseconds timeout,
                                      RepairAttempt& attempt) = 0;
};

class WorldRepairs final : private RepairEvidence {
 public:
  // Both must outlive it.
  WorldRepairs(const Identity& identity, WorldFactory& factory)
      : identity_(identity), factory_(factory) {}
  // May be null, as in FormationInputs.
  void use(store::Client* store, ControlClient* control);

  // For a survivor. Fails with the errors of Repair::agree() and of the formation.
  Result<World> repair(RepairAim aim, RepairTime end);
  // For a restarted process that is in no world yet.
  Result<World> enter(RepairTime end);
  // Returns whether this process must call enter() instead of forming a world with all ranks.
  Result<bool> is_new_member() const;

  // Call when a world starts, repaired or not.
  void world_begins(const World& world);
  void interrupt() { is_interrupted_.store(true); }
  // Records the rank that a failure of the world reports dead.
  void note_missed(const Failure& failure);
  // The number of the world from which the repairs started. A new member has not seen the repaired
  // worlds in between.
  std::uint32_t number_of_base() const;
  // Returns the launcher's number of a rank of the world, or -1 if there is no such rank.
  std::int64_t job_rank(std::int32_t world_rank) const;

 private:
  bool is_dead_by_page(const Member& member) const override;
  bool is_dead_here(const Member& member) const override;
  bool is_missed(const Member& member) const override;
  bool is_interrupted() const override { return is_interrupted_.load(); }
  RepairContext context() const;
  class Attempt;
  Result<World> try_to_form(Attempt& attempt, RepairTime end);

  const Identity& identity_;
  WorldFactory& factory_;
  store::Client* store_ = nullptr;
  ControlClient* control_ = nullptr;
  std::string base_;  // The id of the world from which the repairs started.
  std::uint32_t epoch_ = 0;
  std::vector<Member> members_;
  std::vector<std::uint32_t> missed_;  // Ranks in the job that failures of that world blame.
  // Whether survivors of that world still listen at their addresses in members_.
  bool has_listeners_ = false;
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace ivy::comm
