// SPDX-License-Identifier: Apache-2.0
// Short texts for ranks and their hosts: "0-2,5". Pure; thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/text.h"

namespace ivy {

template <class Number>
std::string folded_ranks(std::vector<Number> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return folded_numbers(ranks);
}

// Names ranks in a sentence: "rank 3", "ranks 0-2,5".
template <class Number>
std::string named_ranks(const std::vector<Number>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + folded_ranks(ranks);
}

// Ranks with the same statement about them, and the hosts on which they run.
struct RankGroup {
  std::vector<std::uint32_t> ranks = {};
  std::vector<std::string> hosts = {};
  std::int32_t pid = 0;  // The pid of a single rank; 0 if unknown.

  void add(std::uint32_t rank, const std::string& host) {
    ranks.push_back(rank);
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  // Returns "ranks 0-2 (hosts a, b" or "rank 3 (host b, pid 77"; the caller closes the bracket.
  std::string text() const {
    constexpr std::size_t kMaxHostsNamed = 4;
    std::string text = named_ranks(ranks) + " (host" + (hosts.size() == 1 ? " " : "s ");
    for (std::size_t i = 0; i < hosts.size() && i < kMaxHostsNamed; ++i)
      text += (i == 0 ? "" : ", ") + hosts[i];
    if (hosts.size() > kMaxHostsNamed)
      text += " and " + std::to_string(hosts.size() - kMaxHostsNamed) + " more";
    return ranks.size() == 1 && pid > 0 ? text + ", pid " + std::to_string(pid) : text;
  }
};

}  // namespace ivy
