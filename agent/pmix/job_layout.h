// SPDX-License-Identifier: Apache-2.0
// The ranks on each host, in the forms that PMIx uses. Ranks are numbered by host, in order: the
// first host has 0, 1, ..., and so on. Pure; thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ivy {

class JobLayout {
 public:
  struct RankLocation {
    std::uint32_t host = 0;
    std::uint32_t local_rank = 0;
  };

  // Both lists have one entry per host; the job has at least one rank.
  JobLayout(std::vector<std::uint32_t> ranks_on_hosts, std::vector<std::string> host_names);

  std::uint32_t hosts() const { return static_cast<std::uint32_t>(counts_.size()); }
  std::uint32_t ranks() const { return first_.back(); }
  std::uint32_t ranks_on(std::uint32_t host) const { return counts_[host]; }
  std::uint32_t first_rank(std::uint32_t host) const { return first_[host]; }
  const std::string& name(std::uint32_t host) const { return names_[host]; }
  // Returns true if the name is that of a host simulated by ivyrun on this machine (--fake-hosts).
  bool is_fake(std::uint32_t host) const;
  bool has(std::uint32_t rank) const { return rank < ranks(); }
  // `rank` must be in the job.
  RankLocation locate(std::uint32_t rank) const;
  // Returns the hosts of these ranks in order, each once. Ignores ranks that are not in the job.
  std::vector<std::uint32_t> hosts_of(std::span<const std::uint32_t> some_ranks) const;

  // "a,b", the input of PMIx_generate_regex().
  std::string node_list() const;
  // "0,1;2,3", the input of PMIx_generate_ppn(). Lists each rank: libpmix copies a range such as
  // "0-1" into a host's local peers, where Open MPI 5 reads it as one rank.
  std::string rank_lists() const;
  // "2,3": the ranks of one host.
  std::string local_peers(std::uint32_t host) const;
  // "(vector,(0,2,2))": PMI's process mapping, for an MPICH that speaks PMIx.
  std::string process_mapping() const;

 private:
  std::vector<std::uint32_t> counts_;
  std::vector<std::string> names_;
  std::vector<std::uint32_t> first_;  // First rank of each host, then the number of ranks.
};

}  // namespace ivy
