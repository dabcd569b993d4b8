// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/repair_agreement.h"

#include <algorithm>
#include <sstream>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

// A process that waits to join has this rank only because its predecessor is gone.
bool is_absent(const RepairRank& rank) {
  return !rank.was_member || rank.is_dead ||
         (rank.new_member && *rank.new_member > rank.incarnation);
}

bool is_survivor(const RepairRank& rank) { return rank.called.has_value() && !is_absent(rank); }

bool has_new_member(const RepairRank& rank) {
  return is_absent(rank) && rank.new_member &&
         (!rank.was_member || *rank.new_member > rank.incarnation);
}

bool is_missing(RepairAim aim, const RepairRank& rank) {
  if (!is_absent(rank)) return !rank.called;
  return aim == RepairAim::kGrow && !has_new_member(rank);
}

std::optional<RepairDecision> find_difference(const RepairView& view) {
  std::optional<std::uint32_t> first;
  for (std::uint32_t rank = 0; rank < view.size(); ++rank) {
    if (!is_survivor(view[rank])) continue;
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

}  // namespace

std::string_view name_of(RepairAim aim) { return aim == RepairAim::kShrink ? "shrink" : "grow"; }

std::string RepairDecision::encoded() const {
  if (rejection) {
    return "no " + std::to_string(static_cast<int>(rejection->code)) + "\n" + rejection->message +
           "\n" + rejection->fix;
  }
  std::string text = "members";
  for (const RepairMember& member : members) {
    text += "\n" + std::to_string(member.job_rank) + " " + std::to_string(member.incarnation) +
            " " + (member.is_new_member ? "1" : "0");
  }
  return text;
}

Result<RepairDecision> RepairDecision::decoded(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  RepairDecision decision;
  if (line.starts_with("no ")) {
    const auto code = to_number<int>(std::string_view(line).substr(3));
    Error& rejection = decision.rejection.emplace();
    if (code) rejection.code = static_cast<Code>(*code);
    std::getline(lines, rejection.message);
    std::getline(lines, rejection.fix);
    return decision;
  }
  const Error damaged{Code::kDataLoss, "the job's store has an invalid record of the repair"};
  if (line != "members") return damaged;
  while (std::getline(lines, line)) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() != 3) return damaged;
    const auto rank = to_number<std::uint32_t>(words[0]);
    const auto incarnation = to_number<std::uint32_t>(words[1]);
    if (!rank || !incarnation) return damaged;
    decision.members.push_back({*rank, *incarnation, words[2] == "1"});
  }
  return decision.members.empty() ? Result<RepairDecision>(damaged) : decision;
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
    if (is_missing(aim, each)) return std::nullopt;
    if (is_survivor(each)) decision.members.push_back({rank, each.incarnation, false});
    if (aim == RepairAim::kGrow && has_new_member(each))
      decision.members.push_back({rank, *each.new_member, true});
  }
  return decision.members.empty() ? std::nullopt : std::optional(decision);
}

bool is_lowest_caller(const RepairView& view, std::uint32_t job_rank) {
  for (std::uint32_t rank = 0; rank < job_rank && rank < view.size(); ++rank) {
    if (is_survivor(view[rank])) return false;
  }
  return true;
}

std::string missing_text(RepairAim aim, const RepairView& view) {
  // Names as many ranks as fit into a text of moderate length.
  constexpr std::size_t kNamedMax = 16;
  std::vector<std::string> missing;
  std::size_t count = 0;
  for (std::uint32_t rank = 0; rank < view.size(); ++rank) {
    if (!is_missing(aim, view[rank])) continue;
    if (++count > kNamedMax) continue;
    missing.push_back("rank " + std::to_string(rank) +
                      (is_absent(view[rank]) ? " has not been restarted"
                                             : " has not called " + std::string(name_of(aim))));
  }
  if (count > kNamedMax) missing.push_back(std::to_string(count - kNamedMax) + " more");
  return joined(missing, ", ");
}

}  // namespace ivy::comm
