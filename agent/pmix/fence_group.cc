// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/fence_group.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// A name is part of a key of the store, whose length is limited.
constexpr std::size_t kLongestName = 200;
// Separates a group's number from the first contribution.
constexpr char kAfterContext = ' ';

std::string name_of(const std::vector<std::uint32_t>& ranks) {
  std::string name = folded_numbers(ranks);
  if (name.size() <= kLongestName) return name;
  return std::to_string(ranks.size()) + "-ranks-" + std::to_string(name_hash(name));
}

}  // namespace

Result<FenceGroup> fence_group(const JobLayout& layout, std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (!ranks.empty() && !layout.has(ranks.back()))
    return Error{Code::kInvalidArgument, "a fence names rank " + std::to_string(ranks.back()) +
                                             " of a job with " + std::to_string(layout.ranks()) +
                                             " ranks"};
  FenceGroup group;
  for (std::uint32_t host = 0; ranks.empty() && host < layout.hosts(); ++host)
    if (layout.ranks_on(host) > 0) group.hosts.push_back(host);
  if (ranks.empty()) return group;
  group.hosts = layout.hosts_of(ranks);
  // A list of all ranks is a separate group: PMIx distinguishes it from the whole job, and two
  // hosts may enter the two fences in different orders.
  group.name = name_of(ranks);
  return group;
}

Result<FenceGroup> named_group(const JobLayout& layout, std::vector<std::uint32_t> ranks,
                               std::string_view id) {
  FenceGroup group = IVY_TRY(fence_group(layout, std::move(ranks)));
  group.name = "group-" + std::to_string(name_hash(id)) + "-" + group.name;
  return group;
}

std::string with_context(std::uint32_t context, std::string_view data) {
  std::string text = std::to_string(context) + kAfterContext;
  text += data;
  return text;
}

Result<GroupResult> group_result(std::string_view all) {
  const std::size_t end = all.find(kAfterContext);
  if (end != std::string_view::npos)
    if (const auto context = to_number<std::uint32_t>(all.substr(0, end)))
      return GroupResult{*context, std::string(all.substr(end + 1))};
  return Error{Code::kInternal, "the first host of a group of ranks sent no context number for it"};
}

}  // namespace ivy
