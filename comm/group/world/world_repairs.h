// SPDX-License-Identifier: Apache-2.0
// This process's part in repairs of its world: its state of the last world, and the attempts, one
// after the other, until a world is formed (repair.h).
//
// Thread: one; interrupt() from any. Lifetime: identity, store and control outlive it.
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

// Forms a world of the members that a repair has decided on. Implemented by Job.
class WorldFormer {
 public:
  virtual ~WorldFormer() = default;
  // This process is identity.rank of identity.world_size.
  virtual Result<World> form_repaired(const Identity& identity, std::chrono::milliseconds timeout,
                                      RepairAttempt& attempt) = 0;
};

class WorldRepairs final : private RepairEvidence {
 public:
  // Both outlive it.
  WorldRepairs(const Identity& identity, WorldFormer& former)
      : identity_(identity), former_(former) {}
  // Null: as FormationInputs has it.
  void use(store::Client* store, ControlClient* control);

  // For a survivor. Errors: those of Repair::agree(), and of the formation.
  Result<World> repair(RepairAim aim, RepairTime end);
  // For a process that was started again and is in no world yet.
  Result<World> enter(RepairTime end);
  // True if this process has to enter() instead of beginning a world with all ranks.
  Result<bool> is_newcomer() const;

  // Call when a world starts, repaired or not.
  void world_begins(const World& world);
  void interrupt() { is_interrupted_.store(true); }
  // Records the rank that a failure of the world reports dead.
  void note_missed(const Failure& failure);
  // The number of the world from which the repairs started. A newcomer has not seen the repaired
  // ones in between.
  std::uint32_t number_of_base() const;
  // The launcher's number of a rank of the world; -1: no rank.
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
  WorldFormer& former_;
  store::Client* store_ = nullptr;
  ControlClient* control_ = nullptr;
  std::string base_;  // The life of the world from which the repairs started.
  std::uint32_t epoch_ = 0;
  std::vector<Member> members_;
  std::vector<std::uint32_t> missed_;  // Ranks in the job that failures of that world blame.
  // True while the ranks of that world that still run listen on their members' addresses.
  bool has_listeners_ = false;
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace ivy::comm
