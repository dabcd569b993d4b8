// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/job_layout.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"

namespace ivy {

JobLayout::JobLayout(std::vector<std::uint32_t> ranks_on_hosts, std::vector<std::string> host_names)
    : counts_(std::move(ranks_on_hosts)), names_(std::move(host_names)), first_{0} {
  for (const std::uint32_t count : counts_) first_.push_back(first_.back() + count);
}

JobLayout::RankLocation JobLayout::locate(std::uint32_t rank) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), rank);
  const auto host = static_cast<std::uint32_t>(after - first_.begin() - 1);
  return {host, rank - first_[host]};
}

std::vector<std::uint32_t> JobLayout::hosts_of(std::span<const std::uint32_t> some_ranks) const {
  std::set<std::uint32_t> found;
  for (const std::uint32_t rank : some_ranks)
    if (has(rank)) found.insert(locate(rank).host);
  return {found.begin(), found.end()};
}

bool JobLayout::is_fake(std::uint32_t host) const { return is_fake_host(names_[host]); }

std::string JobLayout::node_list() const { return joined(names_, ","); }

std::string JobLayout::rank_lists() const {
  std::vector<std::string> lists;
  for (std::uint32_t host = 0; host < hosts(); ++host) lists.push_back(local_peers(host));
  return joined(lists, ";");
}

std::string JobLayout::local_peers(std::uint32_t host) const {
  std::vector<std::string> peers;
  for (std::uint32_t rank = first_[host]; rank < first_[host + 1]; ++rank)
    peers.push_back(std::to_string(rank));
  return joined(peers, ",");
}

std::string JobLayout::process_mapping() const {
  std::string mapping = "(vector";
  for (std::uint32_t host = 0; host < hosts();) {
    std::uint32_t end = host;
    while (end < hosts() && counts_[end] == counts_[host]) ++end;
    if (counts_[host] > 0)
      mapping += ",(" + std::to_string(host) + "," + std::to_string(end - host) + "," +
                 std::to_string(counts_[host]) + ")";
    host = end;
  }
  return mapping + ")";
}

}  // namespace ivy
