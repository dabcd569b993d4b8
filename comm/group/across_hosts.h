// SPDX-License-Identifier: Apache-2.0
// The additional parts of a communicator whose ranks are on several hosts: the connections, the
// collectives over them, the operations that each rank has entered, and the attribution of
// timeouts.
//
// Thread: one at a time (the communicator's lock), except for aborts: any.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/collectives/spanning_collectives.h"
#include "comm/contract/entered_operations.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/job.h"
#include "comm/join/wait_graph.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/shm/shared_group.h"
#include "comm/transports/tcp/tcp_mesh.h"

namespace ivy::comm {

class AcrossHosts final : public OperationComparer, private WaitRecords {
 public:
  // All arguments must outlive it. `local` is null if no other rank is on this host.
  AcrossHosts(Job& job, const Membership& ranks, SharedGroup* local, FailureDetector& detector,
              const FirstFailure& failure);
  ~AcrossHosts() override;
  AcrossHosts(const AcrossHosts&) = delete;
  AcrossHosts& operator=(const AcrossHosts&) = delete;

  SpanningGroup& collectives() { return *spanning_; }
  EnteredOperations& entered() { return entered_; }
  MaybeFailure mesh_failure() const { return mesh_->failure(); }
  // Compares this rank's operations with those that ranks of other hosts have recorded in the
  // store.
  MaybeFailure compare() override;
  bool may_compare(std::uint64_t sequence, std::chrono::nanoseconds pause) override;

  // Closes the connections after a failed operation. A peer whose connection closes queries the
  // failure, which must be published first. An operation that an abort interrupts may end before
  // that: while a thread is aborting, it closes the connections instead, in end_abort().
  void operation_failed();
  void interrupt() { mesh_->interrupt(); }
  void begin_abort() { ++aborting_; }
  // `turn` is the communicator's lock.
  void end_abort(std::mutex& turn);

 private:
  bool write(std::int32_t rank, const WaitRecord& record) override;
  std::optional<WaitRecord> read(std::int32_t rank) override;
  bool is_broken() override { return failure_.is_set() || detector_.check(); }

  Job& job_;
  const Membership& ranks_;
  SharedGroup* const local_;
  FailureDetector& detector_;
  const FirstFailure& failure_;
  EnteredOperations entered_;
  std::unique_ptr<WaitGraph> wait_graph_;
  std::unique_ptr<TcpMesh> mesh_;
  std::unique_ptr<SpanningGroup> spanning_;
  std::atomic<int> aborting_{0};  // Number of threads that are aborting now.
  std::atomic<bool> is_to_hang_up_{false};
};

}  // namespace ivy::comm
