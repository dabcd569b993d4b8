// SPDX-License-Identifier: Apache-2.0
// The survivors of a broken world, and processes that were started again, agree in the job's store
// on the members of a repaired world. There is no leader: each survivor stores that it has called,
// and checks which ranks have called and which are dead; the first that knows this of every rank
// stores the decision, once. The members then form a world (world_formation.h), and the result is
// stored in the same way: the world is formed for all of them, or for none, and then the next epoch
// starts.
//
// Keys, below "ivycomm/BASE/repair/EPOCH/": came/RANK, decision, end. BASE is the life of the job's
// first world. A process that was started again is in no world: it writes ivycomm/newcomer/RANK and
// waits for ivycomm/called/RANK, which names base, epoch and its incarnation. The supervisor writes
// ivy/gone/RANK.
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

// The result of one epoch's attempt, the same for all its members.
struct RepairEnd {
  bool is_formed = false;
  bool is_death = false;  // A member has died: the next epoch continues without it.
  Error error;            // The reason why it is not formed.
};

// Local evidence about other processes, each identified by rank and incarnation. Implemented by
// WorldRepairs.
class RepairEvidence {
 public:
  virtual ~RepairEvidence() = default;
  // The supervisor reports that the process has exited.
  virtual bool is_dead_by_page(const Member& member) const = 0;
  // A member of the broken world, on this host, whose process has exited.
  virtual bool is_dead_here(const Member& member) const = 0;
  // A failure of the broken world blames the member, or its listener no longer answers.
  virtual bool is_missed(const Member& member) const = 0;
  // The caller has interrupted the repair.
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

  // For a survivor; `members`: those of the broken world. DeadlineExceeded: names the absent ranks;
  // Aborted: the ranks call different functions; FailedPrecondition: the others have continued
  // without this rank; Cancelled: a rank has interrupted it. Every survivor of the epoch gets the
  // same result.
  Result<RepairDecision> agree(RepairAim aim, const std::vector<Member>& members, RepairTime end);
  // For a newcomer that was called: returns the survivors' decision.
  Result<RepairDecision> read_decision();
  // Returns why the members cannot form their world; nothing: they still can.
  std::optional<Error> find_obstacle(const RepairDecision& decision,
                                     const std::vector<Member>& members);
  // Stores how this member's attempt has ended, unless another member has stored it; returns what
  // is stored. `formed`: the world is whole on every member. `is_death`: it is not because a member
  // has died, which find_obstacle() need not have found.
  Result<RepairEnd> conclude(const Result<void>& formed, bool is_death);
  // The life of the world of this epoch, which is unique in the job.
  std::string life() const { return base_ + "+" + std::to_string(epoch_); }
  std::uint32_t epoch() const { return epoch_; }
  // Removes keys that are no longer read. Called by one member, after the world was formed.
  void forget_earlier();

 private:
  std::string key(const std::string& name) const {
    return "ivycomm/" + base_ + "/repair/" + std::to_string(epoch_) + "/" + name;
  }
  Result<RepairView> view(const std::vector<Member>& members);
  Result<std::map<std::uint32_t, std::string>> numbered(const std::string& prefix);
  Result<void> read_gone();
  bool has_ended_elsewhere(const Member& member) const;
  Result<RepairDecision> publish(const RepairDecision& decision);
  Result<void> call_newcomers(const RepairDecision& decision);
  Result<RepairDecision> check_own(const RepairDecision& decision) const;

  const RepairContext& context_;
  const std::string base_;
  const std::uint32_t epoch_;
  bool found_death_ = false;
  // By rank: the incarnation of the last process that has ended, and of the one that waits.
  std::map<std::uint32_t, std::uint32_t> gone_;
  std::map<std::uint32_t, std::uint32_t> newcomers_;
};

// A process that was started again and waits for the survivors' grow().
class Newcomer {
 public:
  explicit Newcomer(const RepairContext& context) : context_(context) {}

  struct Call {
    std::string base;
    std::uint32_t epoch = 0;
  };
  // Stores that this process waits to join.
  Result<void> announce();
  // Waits for the survivors' call in an epoch above that one. DeadlineExceeded: there was none.
  Result<Call> await_call(std::uint32_t above, RepairTime end);
  // Records that it is in the world, so that it does not join again.
  void enter();
  // True for another program of the same worker, which starts as those of all ranks do.
  Result<bool> has_entered();

 private:
  const RepairContext& context_;
};

}  // namespace ivy::comm
