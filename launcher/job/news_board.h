// What ranks have come to and what they have reported, and which host has been told how much of it.
// Hosts are told only when a worker of theirs listens, and never what they said themselves.
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

class NewsBoard {
 public:
  // Reports that are kept for a host which listens later; the others were told all of them.
  static constexpr std::size_t kMaxReports = 1024;

  // Another generation: everything is forgotten, and nobody listens. host_of_rank: by rank.
  void begin(std::uint32_t generation, std::vector<std::size_t> host_of_rank);

  // True, here and below: there is something to tell. A host is believed for its own ranks alone.
  bool take(std::size_t host, const News& news);
  // A worker's own process has ended, or was never started. A rank whose host says how it ends (its
  // communicating process is another) or that has left is left to that.
  bool worker_ended(std::size_t host, const RankNews& rank);
  // Nothing more will be heard of this rank.
  bool rank_lost(std::size_t host, std::uint32_t rank, comm_status::RankState state);

  // Hosts that listen, in any order.
  std::vector<std::size_t> listeners() const;
  bool listens(std::size_t host) const { return cursors_.contains(host); }
  // What this host has not been told yet; it counts as told. Nothing: there is nothing.
  std::optional<News> next_for(std::size_t host);
  // Only ranks that have left stand in the way of waiting a little and telling more at once.
  bool is_urgent() const { return is_urgent_; }
  // Everybody has been told everything: what has been overtaken since is forgotten.
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
  std::map<std::uint32_t, Known> ranks_;        // Those that are more than alive.
  std::vector<Entry> entries_;                  // In the order of their arrival.
  std::map<std::size_t, std::size_t> cursors_;  // Listening host: entries that it was told.
  bool is_urgent_ = false;
};

}  // namespace ivy
