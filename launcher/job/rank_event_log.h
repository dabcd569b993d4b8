// SPDX-License-Identifier: Apache-2.0
// The log behind RankEventRelay: the states and reports of ranks, in the order of their arrival,
// and how much of it each host has been sent. A host gets entries only while a worker of its own
// listens, and never its own entries. Pure; thread: any, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "proto/wire/job.pb.h"
#include "proto/wire/status_page.h"

namespace ivy {

class RankEventLog {
 public:
  // Reports that are kept for a host that will listen later. The listening hosts have been sent all
  // of them.
  static constexpr std::size_t kMaxReports = 1024;

  // Begins a generation: forgets everything, including listeners. host_of_rank: the host of each
  // rank.
  void begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank);

  // Takes updates from a host, which is trusted only for its own ranks. Like the next three,
  // returns whether there is something to send.
  bool take(std::size_t host, const RankUpdates& updates);
  // A worker's process has ended, or was never started. Ignored if the rank has left the group, or
  // if its host reports its end itself, because another process of the rank communicates.
  bool worker_ended(std::size_t host, const RankUpdate& rank);
  // Only this rank was restarted, for the `rejoins`th time.
  bool rank_restarted(std::size_t host, std::uint32_t rank, std::uint32_t rejoins,
                      std::int32_t pid);
  // No more events of this rank will arrive; `state` says why.
  bool rank_lost(std::size_t host, std::uint32_t rank, comm_status::RankState state);
  // Returns a host's answer without the ranks of other hosts, for which it is not trusted.
  Operations of_own_ranks(std::size_t host, const Operations& answer) const;

  // Returns the hosts that listen, in any order.
  std::vector<std::size_t> listeners() const;
  // Returns what this host has not been sent, and counts it as sent; nothing if all was sent.
  std::optional<RankUpdates> next_for(std::size_t host);
  // False if the entries to be sent may wait a little, to be sent together with more.
  bool is_urgent() const { return is_urgent_; }
  // Call when all hosts have been sent everything: forgets entries that newer ones have replaced.
  void mark_all_sent();

 private:
  // One state or one report, and the host that it came from.
  struct Entry {
    std::size_t origin = 0;
    std::optional<RankUpdate> rank;
    std::optional<RankReport> report;
  };
  // The last known state of a rank.
  struct Known {
    comm_status::RankState state = comm_status::RankState::kAlive;
    bool reported_by_host = false;
  };
  bool set(std::size_t host, const RankUpdate& rank);
  bool has_rank(std::size_t host, std::uint32_t rank) const {
    return rank < host_of_rank_.size() && host_of_rank_[rank] == host;
  }

  std::uint32_t generation_ = 0;
  std::vector<std::size_t> host_of_rank_;
  std::map<std::uint32_t, Known> ranks_;  // Ranks that have been in another state than alive.
  std::vector<Entry> entries_;            // In the order of their arrival.
  // For each listening host, the number of entries that were sent to it.
  std::map<std::size_t, std::size_t> cursors_;
  bool is_urgent_ = false;
};

}  // namespace ivy
