// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/world_repairs.h"

#include <algorithm>
#include <utility>

#include "comm/transports/liveness/failure_detectors.h"
#include "comm/transports/liveness/process_state.h"
#include "comm/transports/tcp/peer_connections.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy::comm {

using std::chrono::milliseconds;

// Forms the world of one epoch, whose members are decided.
class WorldRepairs::Attempt final : public RepairAttempt {
 public:
  Attempt(const WorldRepairs& repairs, Repair& repair, const RepairDecision& decision)
      : repairs_(repairs), repair_(repair), decision_(decision) {}

  const RepairDecision& decision() const { return decision_; }
  Repair& repair() { return repair_; }
  bool has_death() const { return end_.is_death; }

  std::string world_id() const override { return repair_.world_id(); }
  std::uint32_t job_rank() const override { return repairs_.identity_.rank; }
  std::optional<Error> find_repair_error() override {
    return repair_.find_error(decision_, repairs_.members_);
  }
  Result<void> conclude(const Result<void>& formed, bool is_death) override {
    end_ = IVY_TRY(repair_.conclude(formed, is_death));
    if (end_.is_formed) return {};
    return end_.error;
  }

 private:
  const WorldRepairs& repairs_;
  Repair& repair_;
  const RepairDecision& decision_;
  RepairEnd end_;
};

void WorldRepairs::use(store::Client* store, ControlClient* control) {
  store_ = store;
  control_ = control;
}

void WorldRepairs::world_begins(const World& world) {
  // The name of a repaired world starts with that of the first one.
  base_ = world.world_id.substr(0, world.world_id.find('+'));
  members_ = world.members;
  missed_.clear();
  has_listeners_ = world.local_ranks.size() != world.members.size();
}

void WorldRepairs::note_missed(const Failure& failure) {
  const bool is_death =
      failure.kind == FailureKind::kRankDied || failure.kind == FailureKind::kHostLost;
  const std::int64_t rank = job_rank(failure.rank);
  if (is_death && rank >= 0) missed_.push_back(static_cast<std::uint32_t>(rank));
}

std::int64_t WorldRepairs::job_rank(std::int32_t world_rank) const {
  const auto rank = static_cast<std::size_t>(world_rank);
  return world_rank >= 0 && rank < members_.size() ? std::int64_t{members_[rank].job_rank} : -1;
}

std::uint32_t WorldRepairs::number_of_base() const {
  return to_number<std::uint32_t>(base_.substr(0, base_.find('.'))).value_or(0);
}

bool WorldRepairs::is_dead_by_page(const Member& member) const {
  return control_ != nullptr &&
         status_of(control_->page(), member).state != comm_status::RankState::kAlive;
}

bool WorldRepairs::is_dead_here(const Member& member) const {
  if (control_ != nullptr) return false;
  const auto own = std::find_if(members_.begin(), members_.end(), [this](const Member& each) {
    return each.job_rank == identity_.rank;
  });
  return own != members_.end() && own->host == member.host &&
         has_process_ended(member.pid, member.process_start);
}

// Used if no supervisor reports the ranks of another host: a failure of the world blames the rank,
// or its listener's address refuses connections.
bool WorldRepairs::is_missed(const Member& member) const {
  if (std::find(missed_.begin(), missed_.end(), member.job_rank) != missed_.end()) return true;
  const bool can_probe = has_listeners_ && control_ == nullptr && !member.address.empty();
  return can_probe && !PeerConnections::is_listening(member.address);
}

RepairContext WorldRepairs::context() const {
  return {store_, identity_.world_size, identity_.rank, identity_.attempt.incarnation, *this};
}

Result<World> WorldRepairs::try_to_form(Attempt& attempt, RepairTime end) {
  const RepairDecision& decision = attempt.decision();
  Identity identity = identity_;
  identity.rank = *decision.position_of(identity_.rank, identity_.attempt.incarnation);
  identity.world_size = static_cast<std::uint32_t>(decision.members.size());
  has_listeners_ = false;
  const auto left = std::chrono::duration_cast<milliseconds>(end - steady_now());
  Result<World> world = factory_.form_repaired(identity, std::max(left, milliseconds(1)), attempt);
  if (world.ok() && identity.rank == 0) attempt.repair().forget_earlier();
  return world;
}

Result<World> WorldRepairs::repair(RepairAim aim, RepairTime end) {
  is_interrupted_.store(false);
  const RepairContext context = this->context();
  // Every attempt but the last loses a member. A shrink thus takes at most as many attempts as
  // ranks; a grow, for which lost ranks are restarted, ends when agree() fails at `end`.
  while (true) {
    Repair repair(context, base_, ++epoch_);
    const RepairDecision decision = IVY_TRY(repair.agree(aim, members_, end));
    Attempt attempt(*this, repair, decision);
    Result<World> world = try_to_form(attempt, end);
    if (world.ok() || !attempt.has_death()) return world;
  }
}

Result<bool> WorldRepairs::is_new_member() const {
  if (identity_.attempt.incarnation == 0 || store_ == nullptr) return false;
  const RepairContext context = this->context();
  return !IVY_TRY(NewMember(context).has_entered());
}

Result<World> WorldRepairs::enter(RepairTime end) {
  const RepairContext context = this->context();
  NewMember new_member(context);
  IVY_CHECK(new_member.announce());
  while (true) {
    const NewMember::Call call = IVY_TRY(new_member.await_call(epoch_, end));
    epoch_ = call.epoch;
    Repair repair(context, call.base, call.epoch);
    const Result<RepairDecision> decision = repair.read_decision();
    // A later epoch may have finished already, which removes this epoch's decision.
    if (!decision.ok()) continue;
    Attempt attempt(*this, repair, *decision);
    Result<World> world = try_to_form(attempt, end);
    if (!world.ok()) continue;  // The survivors start the next epoch and call again.
    new_member.enter();
    return world;
  }
}

}  // namespace ivy::comm
