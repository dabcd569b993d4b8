// SPDX-License-Identifier: Apache-2.0
// begin() starts a generation, make_page() creates the status page on the first request. set() and
// mark_alive() change the state of a rank, in the map here and in the page; take() applies updates
// from other hosts to both. publish() wakes the workers. operations() and find_stall() read
// the slots that workers write.
#include "agent/node/supervisor/job_status.h"

#include <algorithm>

#include "agent/node/segments/shared_memory.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

using comm_status::OperationRecord;
using comm_status::Outcome;
using comm_status::PageReport;
using comm_status::PageShape;
using comm_status::RankState;
using comm_status::RankStatus;
using comm_status::SlotView;

// Limit of reported operations per rank; more would add nothing.
constexpr int kMaxRunningSent = 8;
// Limit of remembered stalls; beyond it, some are reported again.
constexpr std::size_t kMaxStalls = 4096;

bool is_ended(RankState state) { return state != RankState::kAlive && state != RankState::kLeft; }

}  // namespace

RankLayout layout_of(const HostPlan& plan) {
  RankLayout layout;
  layout.generation = plan.generation();
  layout.world_size = plan.world_size();
  for (const WorkerSpec& spec : plan.workers()) {
    layout.local.push_back(spec.rank());
    layout.world_size = std::max(layout.world_size, spec.rank() + 1);
  }
  std::uint32_t shared = 0;
  for (const HostShare& share : plan.hosts()) {
    if (share.ranks() == 0 || share.ranks() > layout.world_size - shared) continue;
    layout.shares.push_back({share.name(), share.ranks()});
    shared += share.ranks();
  }
  if (shared < layout.world_size) layout.shares.push_back({"", layout.world_size - shared});
  return layout;
}

void JobStatus::begin(RankLayout layout) {
  shared_.reset();
  layout_ = std::move(layout);
  statuses_.clear();
  reports_.clear();
  stalls_.clear();
  observed_.clear();
  has_changes_ = false;
}

Result<int> JobStatus::page_descriptor() {
  if (!shared_) IVY_CHECK(make_page());
  return shared_->descriptor();
}

Result<void> JobStatus::make_page() {
  const PageShape shape{layout_.world_size, static_cast<std::uint32_t>(layout_.local.size()),
                        static_cast<std::uint32_t>(layout_.shares.size()), layout_.generation};
  shared_ = IVY_TRY(SharedPage::make(shape));
  std::uint32_t rank = 0;
  for (std::uint32_t host = 0; host < layout_.shares.size(); ++host) {
    shared_->page().name_host(host, layout_.shares[host].host);
    for (std::uint32_t i = 0; i < layout_.shares[host].ranks; ++i, ++rank) {
      RankStatus known = status(rank);
      known.host = host;
      shared_->page().set_rank(rank, known);
    }
  }
  for (const PageReport& report : reports_) shared_->page().add_report(report);
  return {};
}

RankStatus JobStatus::status(std::uint32_t rank) const {
  const auto known = statuses_.find(rank);
  return known != statuses_.end() ? known->second : RankStatus{};
}

void JobStatus::write_rank(std::uint32_t rank, const RankStatus& status) {
  statuses_[rank] = status;
  has_changes_ = true;
  if (!shared_) return;
  RankStatus written = status;
  written.host = shared_->page().rank(rank).host;
  shared_->page().set_rank(rank, written);
}

bool JobStatus::set(std::uint32_t rank, RankStatus status) {
  if (rank >= layout_.world_size) return false;
  const RankStatus before = this->status(rank);
  if (status.state == before.state || status.state == RankState::kAlive) return false;
  if (before.state == RankState::kLeft) return false;
  const bool is_better =
      before.state == RankState::kDied &&
      (status.state == RankState::kExited || status.state == RankState::kSignalled);
  if (is_ended(before.state) && !is_better) return false;
  if (is_better) status.when_ns = before.when_ns;
  if (status.pid == 0) status.pid = before.pid;
  status.rejoins = before.rejoins;
  status.last_end = before.last_end;
  write_rank(rank, status);
  return true;
}

void JobStatus::mark_alive(std::uint32_t rank, std::int32_t pid, std::uint32_t rejoins) {
  if (rank >= layout_.world_size) return;
  const RankStatus before = status(rank);
  RankStatus alive;
  alive.pid = pid;
  alive.rejoins = std::max(before.rejoins, rejoins);
  alive.last_end = before.last_end;
  if (alive.rejoins > before.rejoins) {
    // Tells peers how the rank's previous process exited.
    alive.last_end = is_ended(before.state) ? before.state : RankState::kDied;
    alive.when_ns = is_ended(before.state) ? before.when_ns : monotonic_ns();
  }
  if (alive.rejoins > 0) {
    alive.code = before.code;
    alive.out_of_memory = before.out_of_memory;
  }
  write_rank(rank, alive);
}

bool JobStatus::is_reported(const std::string& communicator) const {
  return std::any_of(reports_.begin(), reports_.end(),
                     [&](const PageReport& known) { return known.communicator == communicator; });
}

bool JobStatus::add(const PageReport& report) {
  if (is_reported(report.communicator)) return false;
  reports_.push_back(report);
  if (reports_.size() > comm_status::kReports) reports_.pop_front();
  if (shared_) shared_->page().add_report(report);
  has_changes_ = true;
  return true;
}

void JobStatus::take(const RankUpdates& updates) {
  if (updates.generation() != layout_.generation) return;
  for (const RankUpdate& entry : updates.ranks()) {
    const bool is_known = entry.state() <= static_cast<std::uint32_t>(RankState::kHostLost);
    // This supervisor is the authority on its own ranks: ignore updates about them.
    if (!is_known || slot_of(entry.rank())) continue;
    RankStatus status;
    status.state = static_cast<RankState>(entry.state());
    status.code = entry.code();
    status.pid = entry.pid();
    status.out_of_memory = entry.out_of_memory();
    status.when_ns = monotonic_ns();
    if (status.state == RankState::kAlive) {
      const RankStatus before = this->status(entry.rank());
      if (before.state == RankState::kLeft || entry.rejoins() > before.rejoins)
        mark_alive(entry.rank(), status.pid, entry.rejoins());
      continue;
    }
    set(entry.rank(), status);
  }
  for (const RankReport& entry : updates.reports()) {
    PageReport report;
    report.kind = static_cast<std::uint8_t>(entry.kind());
    report.blamed = entry.blamed();
    report.reporter = entry.reporter();
    report.sequence = entry.sequence();
    report.communicator = entry.communicator();
    report.text = entry.text();
    add(report);
  }
  publish();
}

void JobStatus::add_rank(std::uint32_t rank, RankUpdates& updates) const {
  const RankStatus known = status(rank);
  RankUpdate& entry = *updates.add_ranks();
  entry.set_rank(rank);
  entry.set_state(static_cast<std::uint32_t>(known.state));
  entry.set_code(known.code);
  entry.set_pid(known.pid);
  entry.set_out_of_memory(known.out_of_memory);
  entry.set_rejoins(known.rejoins);
}

void JobStatus::publish() {
  if (!has_changes_ || !shared_) return;
  has_changes_ = false;
  shared_->page().bump();
  wake_futex(&shared_->page().event_count());
}

std::optional<std::uint32_t> JobStatus::slot_of(std::uint32_t rank) const {
  const auto found = std::find(layout_.local.begin(), layout_.local.end(), rank);
  if (found == layout_.local.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - layout_.local.begin());
}

Operations JobStatus::operations(std::uint64_t now_ns) const {
  Operations all;
  all.set_generation(layout_.generation);
  for (std::uint32_t index = 0; shared_ && index < layout_.local.size(); ++index) {
    const SlotView slot = shared_->page().slot(index);
    if (slot.rank() != layout_.local[index]) continue;
    RankOperations& rank = *all.add_ranks();
    const RankStatus known = status(layout_.local[index]);
    rank.set_rank(layout_.local[index]);
    rank.set_pid(slot.pid());
    rank.set_state(static_cast<std::uint32_t>(known.state));
    rank.set_code(known.code);
    for (std::uint32_t row = 0; row < comm_status::kCommunicators; ++row) {
      const std::optional<OperationRecord> current = slot.current(row);
      if (!current || current->outcome != Outcome::kRunning) continue;
      if (rank.running_size() >= kMaxRunningSent) break;
      OperationState& state = *rank.add_running();
      describe_operation(*current, slot, now_ns, state);
      state.set_phase(static_cast<std::uint32_t>(slot.phase(row)));
      state.set_tag_above(slot.tag_above(row));
    }
    const std::vector<OperationRecord> finished = slot.finished(1);
    if (!finished.empty()) describe_operation(finished.front(), slot, now_ns, *rank.mutable_last());
  }
  return all;
}

std::uint64_t JobStatus::finished_operations(std::uint32_t rank) const {
  const std::optional<std::uint32_t> index = slot_of(rank);
  if (!shared_ || !index) return 0;
  const SlotView slot = shared_->page().slot(*index);
  return slot.rank() == rank ? slot.slot()->finished_count.load(std::memory_order_acquire) : 0;
}

std::optional<std::uint32_t> JobStatus::find_stall(std::uint64_t now_ns, std::uint64_t limit_ns) {
  for (std::uint32_t index = 0; shared_ && index < layout_.local.size(); ++index) {
    if (is_ended(status(layout_.local[index]).state)) continue;
    const SlotView slot = shared_->page().slot(index);
    if (slot.rank() != layout_.local[index]) continue;
    for (std::uint32_t row = 0; row < comm_status::kCommunicators; ++row) {
      const std::optional<OperationRecord> current = slot.current(row);
      const bool is_stalled = current && current->outcome == Outcome::kRunning &&
                              now_ns > current->entered_ns &&
                              now_ns - current->entered_ns >= limit_ns;
      if (!is_stalled) continue;
      if (stalls_.size() >= kMaxStalls) stalls_.clear();
      const std::uint32_t key = index * comm_status::kCommunicators + row;
      if (stalls_.emplace(key, current->sequence).second) return layout_.local[index];
    }
  }
  return observed_.find_stall(now_ns, limit_ns);
}

}  // namespace ivy
