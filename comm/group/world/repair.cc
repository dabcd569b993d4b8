// SPDX-License-Identifier: Apache-2.0
// Repair has the survivors' steps in the order in which WorldRepairs takes them: agree() stores
// this rank's call, makes the decision or waits for it, and notifies the restarted processes
// (call_new_members()); the world is then formed, while find_error() checks for reasons to give up;
// and conclude() stores whether that succeeded. NewMember has the steps of a restarted process.
#include "comm/group/world/repair.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kExitedPrefix = "ivy/gone/";
constexpr const char* kNewMember = "ivycomm/newcomer/";
constexpr const char* kCalled = "ivycomm/called/";
constexpr const char* kEntered = "ivycomm/entered/";
// How often the first survivor checks the ranks, and how often the others do, whose number loads
// the store.
constexpr milliseconds kFirstPolls{20};
constexpr milliseconds kPollInterval{100};
constexpr milliseconds kMaxPollInterval{1'000};
constexpr milliseconds kNewMemberPolls{50};

milliseconds until(RepairTime end) {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(end - steady_now()));
}

std::string seconds_until_now(RepairTime start) {
  const auto time = std::chrono::duration_cast<milliseconds>(steady_now() - start).count();
  return std::to_string(time / 1000) + "." + std::to_string(time % 1000 / 100) + " s";
}

}  // namespace

// Returns the values of the keys with a prefix, by the rank at the end of their names.
Result<std::map<std::uint32_t, std::string>> Repair::numbered(const std::string& prefix) {
  std::map<std::uint32_t, std::string> found;
  for (const std::string& name : IVY_TRY(context_.store->list(prefix))) {
    const auto rank = to_number<std::uint32_t>(std::string_view(name).substr(prefix.size()));
    if (!rank || *rank >= context_.job_size) continue;
    Result<std::string> value = context_.store->get(name);
    if (value.ok()) found.emplace(*rank, std::move(value).value());
  }
  return found;
}

// Only the supervisor knows whether a new member's process has exited.
bool Repair::has_exited(const Member& member) const {
  const auto exited = exited_.find(member.job_rank);
  if (exited != exited_.end() && exited->second >= member.incarnation) return true;
  return context_.evidence.is_dead_by_page(member);
}

// Reads which processes have exited: the supervisor has stored it, or a newer process has their
// rank.
Result<void> Repair::read_exited() {
  exited_.clear();
  new_members_.clear();
  for (const auto& [rank, value] : IVY_TRY(numbered(kExitedPrefix))) {
    if (const auto incarnation = to_number<std::uint32_t>(value)) exited_[rank] = *incarnation;
  }
  for (const auto& [rank, value] : IVY_TRY(numbered(kNewMember))) {
    const auto incarnation = to_number<std::uint32_t>(value);
    if (!incarnation || *incarnation == 0) continue;
    new_members_[rank] = *incarnation;
    const auto exited = exited_.emplace(rank, 0).first;
    exited->second = std::max(exited->second, *incarnation - 1);
  }
  return {};
}

Result<RepairView> Repair::view(const std::vector<Member>& members) {
  RepairView view(context_.job_size);
  IVY_CHECK(read_exited());
  for (const auto& [rank, value] : IVY_TRY(numbered(key("came/")))) {
    view[rank].called = value == name_of(RepairAim::kGrow) ? RepairAim::kGrow : RepairAim::kShrink;
  }
  for (const auto& [rank, incarnation] : new_members_) {
    Member member;
    member.job_rank = rank;
    member.incarnation = incarnation;
    if (!has_exited(member)) view[rank].new_member = incarnation;
  }
  for (const Member& member : members) {
    RepairRank& rank = view[member.job_rank];
    rank.was_member = true;
    rank.incarnation = member.incarnation;
    // A rank that has called is alive, even if it was reported missing.
    rank.is_dead = has_exited(member) || context_.evidence.is_dead_here(member) ||
                   (!rank.called && context_.evidence.is_missed(member));
  }
  return view;
}

// Stores the decision unless the epoch already has one. Returns the stored one.
Result<RepairDecision> Repair::publish(const RepairDecision& decision) {
  const std::string own = decision.encoded();
  const auto stored = IVY_TRY(context_.store->compare_set(key("decision"), std::nullopt, own));
  return RepairDecision::decoded(stored.second.value_or(own));
}

Result<RepairDecision> Repair::read_decision() {
  const std::string stored = IVY_TRY(context_.store->get(key("decision")));
  return check_own(IVY_TRY(RepairDecision::decoded(stored)));
}

Result<RepairDecision> Repair::check_own(const RepairDecision& decision) const {
  if (decision.rejection) return *decision.rejection;
  if (decision.position_of(context_.job_rank, context_.incarnation)) return decision;
  return Error{Code::kFailedPrecondition,
               "the other ranks repaired the world without rank " +
                   std::to_string(context_.job_rank) + ", which they consider dead",
               "exit this process"};
}

Result<RepairDecision> Repair::agree(RepairAim aim, const std::vector<Member>& members,
                                     RepairTime end) {
  store::Client& store = *context_.store;
  const RepairTime start = steady_now();
  const std::string decided = key("decision");
  IVY_CHECK(store.set(key("came/" + std::to_string(context_.job_rank)), name_of(aim)));
  while (!IVY_TRY(store.check({decided}))) {
    const RepairView seen = IVY_TRY(view(members));
    std::optional<RepairDecision> decision = decide(aim, seen);
    if (!decision && context_.evidence.is_interrupted()) {
      decision =
          RepairDecision{{},
                         Error{Code::kCancelled, "rank " + std::to_string(context_.job_rank) +
                                                     " interrupted the repair of the world"}};
    } else if (!decision && steady_now() >= end) {
      decision =
          RepairDecision{{},
                         Error{Code::kDeadlineExceeded,
                               std::string(name_of(aim)) + " of the world timed out: after " +
                                   seconds_until_now(start) + " " + missing_text(aim, seen),
                               "every survivor must call it"}};
    }
    if (decision) {
      IVY_TRY(publish(*decision));
      break;
    }
    const bool is_first = is_lowest_caller(seen, context_.job_rank);
    const milliseconds turn =
        is_first ? kFirstPolls
                 : std::min(kMaxPollInterval, kPollInterval + milliseconds(context_.job_size));
    const Result<void> waited = store.wait({decided}, std::min(turn, until(end) + milliseconds(1)));
    if (!waited.ok() && waited.error().code != Code::kDeadlineExceeded) return waited.error();
  }
  const RepairDecision decision = IVY_TRY(read_decision());
  IVY_CHECK(call_new_members(decision));
  return decision;
}

// Every survivor calls the new members, so that none stays uncalled if a survivor dies.
Result<void> Repair::call_new_members(const RepairDecision& decision) {
  for (const RepairMember& member : decision.members) {
    if (!member.is_new_member) continue;
    IVY_CHECK(context_.store->set(
        kCalled + std::to_string(member.job_rank),
        base_ + " " + std::to_string(epoch_) + " " + std::to_string(member.incarnation)));
  }
  return {};
}

std::optional<Error> Repair::find_error(const RepairDecision& decision,
                                        const std::vector<Member>& members) {
  if (context_.evidence.is_interrupted()) {
    return Error{Code::kCancelled, "rank " + std::to_string(context_.job_rank) +
                                       " interrupted the repair of the world"};
  }
  const Result<bool> has_ended = context_.store->check({key("end")});
  if (has_ended.ok() && *has_ended)
    return Error{Code::kUnavailable, "another rank could not form the repaired world"};
  static_cast<void>(read_exited());
  for (const RepairMember& member : decision.members) {
    const auto known = std::find_if(members.begin(), members.end(), [&](const Member& each) {
      return each.job_rank == member.job_rank && each.incarnation == member.incarnation;
    });
    Member identity;
    identity.job_rank = member.job_rank;
    identity.incarnation = member.incarnation;
    const bool is_dead_here = known != members.end() && context_.evidence.is_dead_here(*known);
    if (!is_dead_here && !has_exited(identity)) continue;
    found_death_ = true;
    return Error{Code::kUnavailable,
                 "rank " + std::to_string(member.job_rank) + " died while the world was repaired"};
  }
  return std::nullopt;
}

Result<RepairEnd> Repair::conclude(const Result<void>& formed, bool is_death) {
  RepairEnd end;
  end.is_formed = formed.ok();
  if (!formed.ok()) {
    end.is_death = found_death_ || is_death;
    end.error = formed.error();
  }
  const std::string own = end.encoded();
  const auto stored = IVY_TRY(context_.store->compare_set(key("end"), std::nullopt, own));
  return RepairEnd::decoded(stored.second.value_or(own));
}

void Repair::forget_earlier() {
  store::Client& store = *context_.store;
  const auto remove_below = [&store](const std::string& prefix) {
    const Result<store::Client::Names> names = store.list(prefix);
    if (!names.ok()) return;
    for (const std::string& name : *names) static_cast<void>(store.remove(name));
  };
  // A new member may still read the previous epoch.
  if (epoch_ < 2) return;
  remove_below("ivycomm/" + base_ + "/repair/" + std::to_string(epoch_ - 2) + "/");
  remove_below("ivycomm/" + base_ + "+" + std::to_string(epoch_ - 1) + "/");
}

Result<void> NewMember::announce() {
  return context_.store->set(kNewMember + std::to_string(context_.job_rank),
                             std::to_string(context_.incarnation));
}

Result<NewMember::Call> NewMember::await_call(std::uint32_t above, RepairTime end) {
  const RepairTime start = steady_now();
  const std::string where = kCalled + std::to_string(context_.job_rank);
  while (true) {
    const Result<std::string> value = context_.store->get(where);
    if (!value.ok() && value.error().code != Code::kNotFound) return value.error();
    const std::vector<std::string_view> words =
        value.ok() ? words_of(*value) : std::vector<std::string_view>();
    const bool is_own = words.size() == 3 && words[2] == std::to_string(context_.incarnation);
    const auto epoch = is_own ? to_number<std::uint32_t>(words[1]) : std::nullopt;
    if (epoch && *epoch > above) return Call{std::string(words[0]), *epoch};
    if (steady_now() >= end) break;
    poll(nullptr, 0, static_cast<int>(kNewMemberPolls.count()));
  }
  return Error{Code::kDeadlineExceeded,
               "rank " + std::to_string(context_.job_rank) +
                   " was restarted (IVY_REJOIN=" + std::to_string(context_.incarnation) +
                   "), but the survivors have not accepted " + "it for " + seconds_until_now(start),
               "every survivor must call grow"};
}

void NewMember::enter() {
  const std::string rank = std::to_string(context_.job_rank);
  static_cast<void>(context_.store->set(kEntered + rank, std::to_string(context_.incarnation)));
  static_cast<void>(context_.store->remove(kNewMember + rank));
}

Result<bool> NewMember::has_entered() {
  const Result<std::string> value =
      context_.store->get(kEntered + std::to_string(context_.job_rank));
  if (value.ok()) return *value == std::to_string(context_.incarnation);
  if (value.error().code == Code::kNotFound) return false;
  return value.error();
}

}  // namespace ivy::comm
