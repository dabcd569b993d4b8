// SPDX-License-Identifier: Apache-2.0
// The log behind RankEventRelay: the states and reports of ranks, in the order of their arrival,
// and how much of it each host has been sent. A host listens, that is, is sent entries, from its
// first RankUpdates with `listening`: a worker of it has attached to the control socket. It is
// never sent its own entries. Pure. Not thread-safe.
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
  // Number of reports kept for hosts that start listening later; current listeners already have
  // them.
  static constexpr std::size_t kMaxReports = 1024;

  // Begins a generation: forgets everything, including listeners. host_of_rank: the host of each
  // rank.
  void begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank);

  // ---- Events. Each function ignores ranks that do not run on `host`, and returns true if a
  // listening host may now have something to be sent.

  // Records the events that a host has sent. Ignores those of other generations.
  bool receive(std::size_t host, const RankUpdates& updates);
  // Records that the process that the supervisor started for a rank has exited. Ignored if the host
  // reports the rank itself in RankUpdates: then another process, such as a shell's child, is the
  // one that communicates.
  bool worker_ended(std::size_t host, const RankUpdate& rank);
  // Records that this rank alone was restarted, for the `rejoins`th time.
  bool rank_restarted(std::size_t host, std::uint32_t rank, std::uint32_t rejoins,
                      std::int32_t pid);
  // Another host runs these ranks from now on; their last one listens no longer.
  void move_ranks(const std::vector<std::uint32_t>& ranks, std::size_t host);
  // Records that no more events of this rank will arrive; `state` says why.
  bool rank_lost(std::size_t host, std::uint32_t rank, comm_status::RankState state);

  // ---- Sending

  // Returns the hosts that listen, in any order.
  std::vector<std::size_t> listeners() const;
  // Returns what this host has not been sent, and counts it as sent; nullopt if all was sent.
  std::optional<RankUpdates> next_for(std::size_t host);
  // False if the entries to be sent may wait a little, to be sent together with more.
  bool is_urgent() const { return is_urgent_; }
  // Call when all hosts have been sent everything: forgets entries that newer ones have replaced.
  void mark_all_sent();

  // Returns a host's answer without the ranks of other hosts, for which it is not trusted.
  Operations without_foreign_ranks(std::size_t host, const Operations& answer) const;

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
  // Adds an entry if the state replaces the known one; returns whether it does.
  bool change_state(std::size_t host, const RankUpdate& rank);
  bool has_rank(std::size_t host, std::uint32_t rank) const {
    return rank < host_of_rank_.size() && host_of_rank_[rank] == host;
  }

  std::uint32_t generation_ = 0;
  std::vector<std::size_t> host_of_rank_;
  std::map<std::uint32_t, Known> ranks_;  // Ranks that have had an event.
  std::vector<Entry> entries_;            // In the order of their arrival.
  // For each listening host, the number of entries that were sent to it.
  std::map<std::size_t, std::size_t> cursors_;
  bool is_urgent_ = false;
};

}  // namespace ivy
