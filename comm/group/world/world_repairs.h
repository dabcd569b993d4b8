// SPDX-License-Identifier: Apache-2.0
// This process's part in repairs of its world: what it remembers of the last one, and the attempts,
// one after the other, until a world is formed (repair.h).
//
// Thread: one; interrupt() from any. Lifetime: identity, store and control outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/member.h"
#include "comm/group/world/control_client.h"
#include "comm/group/world/repair.h"
#include "comm/group/world/world_formation.h"
#include "comm/join/identity.h"

namespace ivy::comm {

class WorldRepairs {
 public:
  explicit WorldRepairs(const Identity& identity) : identity_(identity) {}
  // Null: as RepairContext and Joined have it.
  void use(store::Client* store, ControlClient* control);

  // Forms the world of the members, of which this process is identity.rank of identity.world_size.
  using Form = std::function<Result<World>(
      const Identity& identity, std::chrono::milliseconds timeout, const Reformed& reformed)>;
  // For a survivor. Errors: those of Repair::agree(), and of the formation.
  Result<World> repair(RepairAim aim, RepairTime end, const Form& form);
  // For a process that was started again and is in no world yet.
  Result<World> enter(RepairTime end, const Form& form);
  // True if this process has to enter() instead of beginning a world with all ranks.
  Result<bool> is_newcomer() const;

  // Call when a world starts, of this or another kind.
  void world_begins(const World& world);
  void interrupt() { is_interrupted_.store(true); }
  // A failure of the world that blames a rank for having died.
  void note_missed(const Failure& failure);
  // The number of the first world of a line of repairs, of which a newcomer has not seen the
  // others.
  std::uint32_t number_of_base() const;
  // The launcher's number of a rank of the world; -1: no rank.
  std::int64_t job_rank(std::int32_t world_rank) const;

 private:
  bool is_dead_by_page(const Member& member) const;
  bool is_dead_here(const Member& member) const;
  bool is_missed(const Member& member) const;
  RepairContext context() const;
  struct Attempt;
  Result<World> try_to_form(Attempt& attempt, RepairTime end, const Form& form);

  const Identity& identity_;
  store::Client* store_ = nullptr;
  ControlClient* control_ = nullptr;
  std::string base_;  // The life of the first world of this line.
  std::uint32_t epoch_ = 0;
  std::vector<Member> members_;
  std::vector<std::uint32_t> missed_;  // Their ranks in the job, which failures blame.
  bool has_listeners_ =
      false;  // Living ranks still listen on the addresses in that world's members.
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace ivy::comm
