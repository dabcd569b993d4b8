// SPDX-License-Identifier: Apache-2.0
#include "comm/group/across_hosts.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace ivy::comm {

AcrossHosts::AcrossHosts(JobMember& job, const Membership& ranks, SharedGroup* local,
                         FailureDetector& detector, const FirstFailure& failure)
    : job_(job), ranks_(ranks), local_(local), detector_(detector), failure_(failure) {
  entered_.rank = ranks.rank();
  std::vector<std::int32_t> world_ranks;
  for (const Member& member : ranks.members()) world_ranks.push_back(member.world_rank);
  wait_graph_ = std::make_unique<WaitGraph>(entered_, std::move(world_ranks),
                                            static_cast<WaitRecords&>(*this));
  if (local != nullptr) local->set_watch(wait_graph_.get());
  TcpMeshOptions options;
  options.communicator = ranks.name();
  options.self = ranks.rank();
  options.peers = ranks.tcp_peers();
  options.streams = job.tcp_streams();
  if (!job.machine().has_processor_each) options.spin = std::chrono::microseconds(0);
  options.comparer = this;
  options.watch = wait_graph_.get();
  options.entered = &entered_;
  mesh_ = std::make_unique<TcpMesh>(*job.connections(), std::move(options), &detector);
  if (job.notifier() != nullptr) job.notifier()->add(mesh_->event_descriptor());
}

AcrossHosts::~AcrossHosts() {
  if (job_.notifier() != nullptr) job_.notifier()->remove(mesh_->event_descriptor());
}

MaybeFailure AcrossHosts::compare() {
  const MaybeFailure different = job_.records().compare(ranks_.name(), entered_);
  if (!different) return std::nullopt;
  Failure placed = *different;
  placed.rank = ranks_.world_rank(different->rank);
  return placed;
}

bool AcrossHosts::may_compare(std::uint64_t sequence, std::chrono::nanoseconds pause) {
  return local_ == nullptr || local_->take_turn(sequence, pause);
}

bool AcrossHosts::write(std::int32_t rank, const WaitRecord& record) {
  return job_.records().write_wait(ranks_.name(), rank, record);
}

std::optional<WaitRecord> AcrossHosts::read(std::int32_t rank) {
  return job_.records().read_wait(ranks_.name(), rank);
}

void AcrossHosts::operation_failed() {
  is_to_hang_up_.store(true);
  if (aborting_.load() == 0) mesh_->hang_up();
}

// An operation in progress closes the connections itself, unless it ended while this thread was
// still aborting.
void AcrossHosts::end_abort(std::mutex& turn) {
  --aborting_;
  mesh_->interrupt();
  while (!turn.try_lock()) {
    if (!is_to_hang_up_.load()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  mesh_->hang_up();
  turn.unlock();
}

}  // namespace ivy::comm
