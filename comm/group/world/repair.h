// SPDX-License-Identifier: Apache-2.0
// The survivors of a broken world, and restarted processes, agree in the job's store on the members
// of a repaired world. There is no leader. Each survivor records its call in the store, and checks
// which ranks have called and which are dead. The first survivor that knows the state of every rank
// stores the decision, once. The members then form a world (world_formation.h), and the result is
// stored in the same way: the world is formed for all of them, or for none, and then the next epoch
// starts.
//
// Keys below "ivycomm/BASE/repair/EPOCH/" are came/RANK, decision and end. BASE is the id of the
// world from which the repairs started. A restarted process is in no world: it writes
// ivycomm/newcomer/RANK and waits for ivycomm/called/RANK, which contains base, epoch and its
// incarnation. The supervisor writes ivy/gone/RANK.
//
// Thread: one. Lifetime: the context outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/member.h"
#include "comm/group/world/repair_agreement.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

using RepairTime = std::chrono::steady_clock::time_point;

// Local evidence about other processes, each identified by rank and incarnation. Implemented by
// WorldRepairs.
class RepairEvidence {
 public:
  virtual ~RepairEvidence() = default;
  // Returns whether the supervisor reports that the process has exited.
  virtual bool is_dead_by_page(const Member& member) const = 0;
  // Returns whether it is a member of the broken world on this host whose process has exited.
  virtual bool is_dead_here(const Member& member) const = 0;
  // Returns whether a failure of the broken world blames the member, or its listener's address
  // refuses connections.
  virtual bool is_missed(const Member& member) const = 0;
  // Returns whether the caller has interrupted the repair.
  virtual bool is_interrupted() const = 0;
};

struct RepairContext {
  store::Client* store;
  std::uint32_t job_size;
  std::uint32_t job_rank;
  std::uint32_t incarnation;
  const RepairEvidence& evidence;
};

class Repair {
 public:
  // `epoch` must be higher than that of any earlier attempt of this job.
  Repair(const RepairContext& context, std::string base, std::uint32_t epoch)
      : context_(context), base_(std::move(base)), epoch_(epoch) {}

  // For a survivor. `members` are those of the broken world. Fails with DeadlineExceeded if ranks
  // are missing (the text names them), Aborted if the ranks called different functions,
  // FailedPrecondition if the others have continued without this rank, and Cancelled if a rank has
  // interrupted the repair. Every survivor of the epoch gets the same result.
  Result<RepairDecision> agree(RepairAim aim, const std::vector<Member>& members, RepairTime end);
  // For a new member that was called. Returns the survivors' decision.
  Result<RepairDecision> read_decision();
  // Returns why the members cannot form their world, or nothing if they still can.
  std::optional<Error> find_error(const RepairDecision& decision,
                                  const std::vector<Member>& members);
  // Stores the result of this member's attempt, unless another member has already stored one.
  // Returns the stored result. Success in `formed` means that the world is complete on every
  // member. `is_death` means that it is incomplete because a member has died, even if
  // find_error() has not found that.
  Result<RepairEnd> conclude(const Result<void>& formed, bool is_death);
  // The id of this epoch's world, which is unique in the job.
  std::string world_id() const { return base_ + "+" + std::to_string(epoch_); }
  std::uint32_t epoch() const { return epoch_; }
  // Removes keys that are no longer read. Called by one member, after the world was formed.
  void forget_earlier();

 private:
  std::string key(const std::string& name) const {
    return "ivycomm/" + base_ + "/repair/" + std::to_string(epoch_) + "/" + name;
  }
  Result<RepairView> view(const std::vector<Member>& members);
  Result<std::map<std::uint32_t, std::string>> numbered(const std::string& prefix);
  Result<void> read_exited();
  bool has_exited(const Member& member) const;
  Result<RepairDecision> publish(const RepairDecision& decision);
  Result<void> call_new_members(const RepairDecision& decision);
  Result<RepairDecision> check_own(const RepairDecision& decision) const;

  const RepairContext& context_;
  const std::string base_;
  const std::uint32_t epoch_;
  bool found_death_ = false;
  // The incarnation of each rank's last process that has exited, and of its process that waits to
  // join.
  std::map<std::uint32_t, std::uint32_t> exited_;
  std::map<std::uint32_t, std::uint32_t> new_members_;
};

// A restarted process that waits for the survivors' grow().
class NewMember {
 public:
  explicit NewMember(const RepairContext& context) : context_(context) {}

  struct Call {
    std::string base;
    std::uint32_t epoch = 0;
  };
  // Stores that this process waits to join.
  Result<void> announce();
  // Waits for the survivors' call in an epoch above `above`. Fails with DeadlineExceeded if there
  // was none.
  Result<Call> await_call(std::uint32_t above, RepairTime end);
  // Records that this process is in the world, so that it does not join again.
  void enter();
  // Returns whether this rank's process has already joined. Then this is another program of the
  // same worker, which starts like those of all ranks.
  Result<bool> has_entered();

 private:
  const RepairContext& context_;
};

}  // namespace ivy::comm
