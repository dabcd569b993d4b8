// SPDX-License-Identifier: Apache-2.0
// This supervisor's knowledge of all ranks of a generation, and the status page
// (proto/wire/status_page.h) through which it informs its workers. The page is created on the first
// worker's request: a job that does not use libivycomm has none. Thread: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/supervisor/observed_pages.h"
#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/status_page.h"

namespace ivy {

// The ranks of one generation.
struct RankLayout {
  struct Share {
    std::string host;
    std::uint32_t ranks = 0;
  };
  std::uint32_t generation = 0;
  std::uint32_t world_size = 0;
  std::vector<Share> shares;         // In rank order; together the world.
  std::vector<std::uint32_t> local;  // The rank of each slot.
};
RankLayout layout_of(const HostPlan& plan);

class JobStatus {
 public:
  JobStatus() = default;
  JobStatus(const JobStatus&) = delete;
  JobStatus& operator=(const JobStatus&) = delete;

  // Forgets the last generation; the next page is a new one.
  void begin(RankLayout layout);

  // Returns the descriptor of the page, which the first call creates. The caller does not own it.
  Result<int> page_descriptor();
  std::uint64_t page_bytes() const { return shared_ ? shared_->bytes() : 0; }
  // The pages of processes that have not attached.
  ObservedPages& observed() { return observed_; }

  // Returns true if this changed anything. A dead rank stays dead, but its exit status may become
  // known later.
  bool set(std::uint32_t rank, comm_status::RankStatus status);
  // A process of this rank has attached in place of one that has left, or only this rank was
  // restarted: then `rejoins` is greater than before.
  void mark_alive(std::uint32_t rank, std::int32_t pid, std::uint32_t rejoins = 0);
  comm_status::RankStatus status(std::uint32_t rank) const;
  // Returns false if this communicator was already known to be broken.
  bool add(const comm_status::PageReport& report);
  bool is_reported(const std::string& communicator) const;
  // Applies and publishes the launcher's updates of ranks on other hosts, and their reports.
  void take(const RankUpdates& updates);
  // Adds the known state of this rank.
  void add_rank(std::uint32_t rank, RankUpdates& updates) const;
  // Wakes the workers when anything has changed since the last call.
  void publish();

  const RankLayout& layout() const { return layout_; }
  // Returns nothing for a rank of another host.
  std::optional<std::uint32_t> slot_of(std::uint32_t rank) const;

  // Returns the operations of every local rank with a slot in use, including dead ranks.
  Operations operations(std::uint64_t now_ns) const;
  // Returns how many operations the rank's process has finished; 0 if it has not attached.
  std::uint64_t finished_operations(std::uint32_t rank) const;
  // Returns a rank whose operation has run for longer than the limit, once per operation.
  std::optional<std::uint32_t> find_stall(std::uint64_t now_ns, std::uint64_t limit_ns);

 private:
  Result<void> make_page();
  void write_rank(std::uint32_t rank, const comm_status::RankStatus& status);

  RankLayout layout_;
  // Ranks that have left, died or were restarted.
  std::map<std::uint32_t, comm_status::RankStatus> statuses_;
  std::deque<comm_status::PageReport> reports_;  // As many as the page holds.
  // Slot, row and sequence of the operation.
  std::set<std::pair<std::uint32_t, std::uint64_t>> stalls_;
  ObservedPages observed_;
  std::unique_ptr<SharedPage> shared_;
  bool has_changes_ = false;
};

}  // namespace ivy
