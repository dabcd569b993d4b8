// SPDX-License-Identifier: Apache-2.0
// Everything that a communicator needs only if its ranks are on several hosts. Owns the TCP
// connections to the ranks of other hosts (TcpMesh). Shared memory shows immediately which
// operation a rank entered; between hosts this has to be recorded: entered() is this rank's record,
// compare() finds ranks that are in a different operation, and a WaitGraph finds the rank for which
// a timed-out operation waited.
//
// Communicator creates one only for several hosts, and calls it from perform() and abort().
//
// Thread: one at a time (the communicator's lock), except that any thread may call interrupt(),
// begin_abort() and end_abort().
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/contract/entered_operations.h"
#include "comm/group/core/first_failure.h"
#include "comm/group/core/membership.h"
#include "comm/group/world/job_member.h"
#include "comm/join/wait_graph.h"
#include "comm/transports/liveness/failure_detector.h"
#include "comm/transports/shm/shared_group.h"
#include "comm/transports/tcp/tcp_mesh.h"

namespace ivy::comm {

class AcrossHosts final : public OperationComparer, private WaitRecords {
 public:
  // All arguments must outlive it. `local` is null if no other rank is on this host.
  AcrossHosts(JobMember& job, const Membership& ranks, SharedGroup* local,
              FailureDetector& detector, const FirstFailure& failure);
  ~AcrossHosts() override;
  AcrossHosts(const AcrossHosts&) = delete;
  AcrossHosts& operator=(const AcrossHosts&) = delete;

  TcpMesh& mesh() { return *mesh_; }
  EnteredOperations& entered() { return entered_; }
  // Returns the failure of a connection or of an operation over it, or nothing.
  MaybeFailure mesh_failure() const { return mesh_->failure(); }
  // Compares this rank's operations with those that ranks of other hosts have recorded in the
  // store.
  MaybeFailure compare() override;
  // Returns true if this rank may query the store now: the ranks of a host take turns.
  bool may_compare(std::uint64_t sequence, std::chrono::nanoseconds pause) override;

  // Closes the connections after a failed operation, whose failure must have been published: a peer
  // whose connection closes queries it. An operation that was interrupted by an abort may fail
  // before the abort is published. While a thread is aborting, the connections are therefore left
  // open here, and that thread closes them in end_abort().
  void operation_failed();
  // Wakes the operation in progress. Any thread.
  void interrupt() { mesh_->interrupt(); }
  // Enclose an abort: begin_abort() before it, end_abort() when it is published. end_abort()
  // interrupts the operation in progress and makes sure that the connections get closed. `turn` is
  // the communicator's lock. Any thread.
  void begin_abort() { ++aborting_; }
  void end_abort(std::mutex& turn);

 private:
  // WaitRecords, in the job's store:
  bool write(std::int32_t rank, const WaitRecord& record) override;
  std::optional<WaitRecord> read(std::int32_t rank) override;
  bool is_broken() override { return failure_.is_set() || detector_.check(); }

  JobMember& job_;
  const Membership& ranks_;
  SharedGroup* const local_;
  FailureDetector& detector_;
  const FirstFailure& failure_;
  EnteredOperations entered_;
  std::unique_ptr<WaitGraph> wait_graph_;
  std::unique_ptr<TcpMesh> mesh_;
  std::atomic<int> aborting_{0};            // Number of threads that are aborting now.
  std::atomic<bool> is_to_hang_up_{false};  // An operation has failed: close the connections.
};

}  // namespace ivy::comm
