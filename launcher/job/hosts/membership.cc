// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hosts/membership.h"

#include <algorithm>
#include <map>
#include <set>

#include "proto/contract/host_ranges.h"

namespace ivy {
namespace {

// Limit of the reasons that are printed; of the other hosts, only the names are printed.
constexpr std::size_t kMaxReasons = 8;

std::size_t count(const std::vector<Member>& members, Member kind) {
  return static_cast<std::size_t>(std::count(members.begin(), members.end(), kind));
}

struct AbsenceGroup {
  std::string why;
  std::vector<std::string> names;
};

std::vector<AbsenceGroup> by_reason(const std::vector<ExcludedHost>& excluded) {
  std::vector<AbsenceGroup> groups;
  for (const ExcludedHost& member : excluded) {
    const std::string why = (member.step.empty() ? "" : member.step + ": ") + member.reason.line();
    auto same = std::find_if(groups.begin(), groups.end(),
                             [&](const AbsenceGroup& group) { return group.why == why; });
    if (same == groups.end()) same = groups.insert(groups.end(), AbsenceGroup{why, {}});
    same->names.push_back(member.name);
  }
  return groups;
}

}  // namespace

MemberDecision decide_members(const std::vector<Member>& members, std::size_t min_members,
                              bool timed_out) {
  const std::size_t present = count(members, Member::kPresent);
  const std::size_t awaited = count(members, Member::kAwaited);
  if (present + (timed_out ? 0 : awaited) < min_members) return MemberDecision::kTooFew;
  return awaited > 0 && !timed_out ? MemberDecision::kWait : MemberDecision::kContinue;
}

std::size_t spare_members(const std::vector<Member>& members, std::size_t min_members) {
  const std::size_t present = count(members, Member::kPresent);
  return present > min_members ? present - min_members : 0;
}

std::vector<std::string> peer_addresses(const std::vector<std::vector<std::string>>& hosts,
                                        std::size_t store_host) {
  std::set<std::set<std::string>> machines;
  for (const std::vector<std::string>& addresses : hosts)
    machines.emplace(addresses.begin(), addresses.end());
  std::map<std::string, int> owners;
  for (const std::set<std::string>& addresses : machines)
    for (const std::string& address : addresses) owners[address] += 1;
  for (const std::string& address : hosts.at(store_host)) owners.erase(address);
  std::vector<std::string> peers;
  for (const auto& [address, count] : owners)
    if (count == 1) peers.push_back(address);
  return peers;
}

std::string members_line(std::size_t present, std::size_t all, const std::string& range,
                         const std::vector<ExcludedHost>& excluded) {
  std::string line =
      std::to_string(present) + " of " + std::to_string(all) + " hosts (" + range + ")";
  const std::vector<AbsenceGroup> groups = by_reason(excluded);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    line += (i == 0 ? ", without " : ", ") + fold_host_names(groups[i].names);
    if (i < kMaxReasons) line += " (" + groups[i].why + ")";
  }
  return line;
}

std::string lost_text(const std::vector<LostMember>& lost) {
  std::string text;
  for (const LostMember& member : lost) text += (text.empty() ? "" : ", ") + member.cause;
  return text;
}

}  // namespace ivy
