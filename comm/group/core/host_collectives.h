// SPDX-License-Identifier: Apache-2.0
// A communicator's collectives on host memory. The hosts of the ranks determine which functions
// perform them:
//   one rank           copies
//   one host           comm/collectives/shared_*: shared memory
//   several hosts      comm/collectives/spanning_*: shared memory inside, TCP between hosts
//
// All operations return false if the communicator is broken. Thread: one at a time (the
// communicator's lock).
#pragma once

#include "comm/collectives/coalesced.h"
#include "comm/collectives/collective.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/spanning_collectives.h"
#include "comm/group/core/membership.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

class HostCollectives {
 public:
  // All arguments must outlive it. `local` is null if no other rank is on this host, `spanning` if
  // all ranks are.
  HostCollectives(const Membership& ranks, SharedGroup* local, SpanningGroup* spanning,
                  bool has_processor_each)
      : ranks_(ranks),
        local_(local),
        spanning_(spanning),
        has_processor_each_(has_processor_each) {}

  bool run(const OperationCall& call, const Collective& collective);
  // Waits until every rank of the communicator has reached this operation. Returns false on
  // failure.
  bool barrier(const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->barrier(call);
    return local_ == nullptr || shared_barrier(*local_, call);
  }
  SharedGroup* local() const { return local_; }
  SpanningGroup* spanning() const { return spanning_; }

 private:
  ReduceRule rule(const Collective& collective) const;
  bool all_reduce(const OperationCall& call, const Vectors& vectors);
  bool all_reduce_parts(const OperationCall& call, const Collective& collective);
  bool reduce(const OperationCall& call, const Collective& collective);
  bool scan(const OperationCall& call, const Collective& collective);
  bool reduce_scatter(const OperationCall& call, const Collective& collective);
  bool reduce_scatter_to(const OperationCall& call, const Vectors& vectors, const Ranges& ranges);
  bool broadcast(const OperationCall& call, const Collective& collective);
  bool all_gather(const OperationCall& call, const Collective& collective);
  bool gather(const OperationCall& call, const Collective& collective);
  bool scatter(const OperationCall& call, const Collective& collective);
  bool all_to_all(const OperationCall& call, const Collective& collective);

  const Membership& ranks_;
  SharedGroup* const local_;
  SpanningGroup* const spanning_;
  const bool has_processor_each_;
  PartsScratch parts_scratch_;
};

}  // namespace ivy::comm
