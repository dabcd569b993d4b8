// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/repair_agreement.h"

#include <algorithm>
#include <cstddef>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

// The states of a rank, and the consequence of each for the new world:
//
//                                                  shrink         grow
//   kSurvivor  the member has called               is a member    is a member
//   kSilent    the member has not called           is awaited     is awaited
//   kLost      the member is dead, or there was    is left out    its restart is awaited
//              none, because of an earlier repair
//   kReplaced  the same, and a restarted process   is left out    that process is a member
//              waits to join
enum class RepairState : std::uint8_t { kSurvivor, kSilent, kLost, kReplaced };

RepairState state_of(const RepairRank& rank) {
  // A process that waits to join has the rank only because its predecessor is gone. An older one is
  // the member itself, which has not removed its announcement yet.
  const bool is_replaced =
      rank.new_member && (!rank.was_member || *rank.new_member > rank.incarnation);
  if (is_replaced) return RepairState::kReplaced;
  if (!rank.was_member || rank.is_dead) return RepairState::kLost;
  return rank.called ? RepairState::kSurvivor : RepairState::kSilent;
}

bool is_awaited(RepairAim aim, RepairState state) {
  return state == RepairState::kSilent || (state == RepairState::kLost && aim == RepairAim::kGrow);
}

std::optional<RepairDecision> find_difference(const RepairView& view) {
  std::optional<std::uint32_t> first;
  for (std::uint32_t rank = 0; rank < view.size(); ++rank) {
    if (state_of(view[rank]) != RepairState::kSurvivor) continue;
    if (!first) first = rank;
    if (view[rank].called == view[*first].called) continue;
    const auto call_text = [&](std::uint32_t which) {
      return "rank " + std::to_string(which) + " calls " +
             std::string(name_of(*view[which].called));
    };
    return RepairDecision{{},
                          Error{Code::kAborted,
                                "the survivors repair the world in different ways: " +
                                    call_text(*first) + ", " + call_text(rank),
                                "call the same function on every rank"}};
  }
  return std::nullopt;
}

Error invalid_record() {
  return {Code::kDataLoss, "the job's store has an invalid record of the repair"};
}

std::string encoded_error(const Error& error) {
  return std::to_string(static_cast<int>(error.code)) + " " + std::to_string(error.message.size()) +
         "\n" + error.message + error.fix;
}

std::optional<Error> decoded_error(std::string_view text) {
  const auto code = to_number<int>(take_part(text, ' '));
  const auto message_bytes = to_number<std::size_t>(take_part(text, '\n'));
  if (!code || !message_bytes || *message_bytes > text.size()) return std::nullopt;
  return Error{static_cast<Code>(*code), std::string(text.substr(0, *message_bytes)),
               std::string(text.substr(*message_bytes))};
}

}  // namespace

std::string_view name_of(RepairAim aim) { return aim == RepairAim::kShrink ? "shrink" : "grow"; }

std::string RepairDecision::encoded() const {
  if (rejection) return "no " + encoded_error(*rejection);
  std::string text = "members";
  for (const RepairMember& member : members) {
    text += "\n" + std::to_string(member.job_rank) + " " + std::to_string(member.incarnation) +
            " " + (member.is_new_member ? "1" : "0");
  }
  return text;
}

Result<RepairDecision> RepairDecision::decoded(std::string_view text) {
  RepairDecision decision;
  if (text.starts_with("no ")) {
    decision.rejection = decoded_error(text.substr(3));
    if (!decision.rejection) return invalid_record();
    return decision;
  }
  if (take_part(text, '\n') != "members") return invalid_record();
  for (const std::string_view line : parts_of(text, '\n')) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() != 3) return invalid_record();
    const auto rank = to_number<std::uint32_t>(words[0]);
    const auto incarnation = to_number<std::uint32_t>(words[1]);
    if (!rank || !incarnation || (words[2] != "0" && words[2] != "1")) return invalid_record();
    decision.members.push_back({*rank, *incarnation, words[2] == "1"});
  }
  return decision.members.empty() ? Result<RepairDecision>(invalid_record()) : decision;
}

std::string RepairEnd::encoded() const {
  if (is_formed) return "formed";
  return (is_death ? "death " : "error ") + encoded_error(error);
}

Result<RepairEnd> RepairEnd::decoded(std::string_view text) {
  RepairEnd end;
  if (text == "formed") {
    end.is_formed = true;
    return end;
  }
  const std::string_view kind = take_part(text, ' ');
  const std::optional<Error> error = decoded_error(text);
  if ((kind != "death" && kind != "error") || !error) return invalid_record();
  end.is_death = kind == "death";
  end.error = *error;
  return end;
}

std::optional<std::uint32_t> RepairDecision::position_of(std::uint32_t job_rank,
                                                         std::uint32_t incarnation) const {
  const auto found = std::find_if(members.begin(), members.end(), [&](const RepairMember& member) {
    return member.job_rank == job_rank && member.incarnation == incarnation;
  });
  if (found == members.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - members.begin());
}

std::optional<RepairDecision> decide(RepairAim aim, const RepairView& view) {
  if (auto different = find_difference(view)) return different;
  RepairDecision decision;
  for (std::uint32_t rank = 0; rank < view.size(); ++rank) {
    const RepairRank& each = view[rank];
    const RepairState state = state_of(each);
    if (is_awaited(aim, state)) return std::nullopt;
    if (state == RepairState::kSurvivor)
      decision.members.push_back({rank, each.incarnation, false});
    if (state == RepairState::kReplaced && aim == RepairAim::kGrow)
      decision.members.push_back({rank, *each.new_member, true});
  }
  return decision.members.empty() ? std::nullopt : std::optional(decision);
}

bool is_lowest_caller(const RepairView& view, std::uint32_t job_rank) {
  for (std::uint32_t rank = 0; rank < job_rank && rank < view.size(); ++rank) {
    if (state_of(view[rank]) == RepairState::kSurvivor) return false;
  }
  return true;
}

std::string missing_text(RepairAim aim, const RepairView& view) {
  // Names as many ranks as fit into a text of moderate length.
  constexpr std::size_t kNamedMax = 16;
  std::vector<std::string> missing;
  std::size_t count = 0;
  for (std::uint32_t rank = 0; rank < view.size(); ++rank) {
    const RepairState state = state_of(view[rank]);
    if (!is_awaited(aim, state)) continue;
    if (++count > kNamedMax) continue;
    missing.push_back("rank " + std::to_string(rank) +
                      (state == RepairState::kLost
                           ? " has not been restarted"
                           : " has not called " + std::string(name_of(aim))));
  }
  if (count > kNamedMax) missing.push_back(std::to_string(count - kNamedMax) + " more");
  return joined(missing, ", ");
}

}  // namespace ivy::comm
