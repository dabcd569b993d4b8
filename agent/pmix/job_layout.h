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
  struct Place {
    std::uint32_t host = 0;
    std::uint32_t local_rank = 0;
  };

  // As many names as counts; at least one rank.
  JobLayout(std::vector<std::uint32_t> ranks_on_hosts, std::vector<std::string> host_names);

  std::uint32_t hosts() const { return static_cast<std::uint32_t>(counts_.size()); }
  std::uint32_t ranks() const { return first_.back(); }
  std::uint32_t ranks_on(std::uint32_t host) const { return counts_[host]; }
  std::uint32_t first_rank(std::uint32_t host) const { return first_[host]; }
  const std::string& name(std::uint32_t host) const { return names_[host]; }
  // One of several pretended hosts of one machine (--fake-hosts), as ivyrun names them.
  bool is_pretended(std::uint32_t host) const;
  bool has(std::uint32_t rank) const { return rank < ranks(); }
  // `rank` is one of the job's.
  Place place(std::uint32_t rank) const;
  // The hosts of these ranks in order, each once; ranks that the job does not have are left out.
  std::vector<std::uint32_t> hosts_of(std::span<const std::uint32_t> some_ranks) const;

  // "a,b", as PMIx_generate_regex() takes it.
  std::string node_list() const;
  // "0,1;2,3", for PMIx_generate_ppn. Each rank by itself: the library passes a range such as "0-1"
  // on as the peers of a host, which Open MPI 5 then reads as one rank.
  std::string rank_lists() const;
  // "2,3": the ranks of one host.
  std::string local_peers(std::uint32_t host) const;
  // "(vector,(0,2,2))": PMI's process mapping, which an MPICH that speaks PMIx reads.
  std::string process_mapping() const;

 private:
  std::vector<std::uint32_t> counts_;
  std::vector<std::string> names_;
  std::vector<std::uint32_t> first_;  // By host; one entry more: the number of ranks.
};

}  // namespace ivy
