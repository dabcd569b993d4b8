// SPDX-License-Identifier: Apache-2.0
// Holds the states and reports of ranks, and how much of them each host has been sent. A host is
// sent them only when a worker of its own listens, and never those that it has sent itself.
// Pure. Thread: any, one at a time.
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
  // Reports that are kept for a host that listens later; the others were sent all of them.
  static constexpr std::size_t kMaxReports = 1024;

  // Begins a generation: forgets everything, listeners included. host_of_rank: by rank.
  void begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank);

  // True, here and below: there is something to send. A host is believed for its own ranks alone.
  bool take(std::size_t host, const News& news);
  // A worker's own process has ended, or was never started. Ignored for a rank that has left or
  // whose host reports its end itself (its communicating process is another).
  bool worker_ended(std::size_t host, const RankNews& rank);
  // The rank was started again alone, `rejoins` times by now.
  bool rank_restarted(std::size_t host, std::uint32_t rank, std::uint32_t rejoins,
                      std::int32_t pid);
  // No more events of this rank will arrive.
  bool rank_lost(std::size_t host, std::uint32_t rank, comm_status::RankState state);
  // Returns the host's answer without the ranks of other hosts, for which it is not believed.
  Operations of_own_ranks(std::size_t host, const Operations& said) const;

  // Hosts that listen, in any order.
  std::vector<std::size_t> listeners() const;
  // Takes what this host has not been sent yet; it counts as sent. Nothing: all was sent.
  std::optional<News> next_for(std::size_t host);
  // False if what is to be sent may wait a little, to go out together with more.
  bool is_urgent() const { return is_urgent_; }
  // Call when all hosts were sent everything: forgets what newer entries have replaced.
  void told_all();

 private:
  struct Entry {
    std::size_t origin = 0;
    std::optional<RankNews> rank;
    std::optional<RankReport> report;
  };
  struct Known {
    comm_status::RankState state = comm_status::RankState::kAlive;
    bool told_by_host = false;
  };
  bool set(std::size_t host, const RankNews& rank);
  bool has_rank(std::size_t host, std::uint32_t rank) const {
    return rank < host_of_rank_.size() && host_of_rank_[rank] == host;
  }

  std::uint32_t generation_ = 0;
  std::vector<std::size_t> host_of_rank_;
  std::map<std::uint32_t, Known> ranks_;        // Ranks that have been in another state than alive.
  std::vector<Entry> entries_;                  // In the order of their arrival.
  std::map<std::size_t, std::size_t> cursors_;  // Listening host: number of entries sent to it.
  bool is_urgent_ = false;
};

}  // namespace ivy
