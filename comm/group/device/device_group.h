// SPDX-License-Identifier: Apache-2.0
// Operations on devices that one thread passes to NCCL together. Between begin() and end() they are
// only recorded; end() puts all of them on their streams. This way two ranks can send to each
// other, and several small operations cost one launch.
//
// Thread: each thread has its own group.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/group/core/work.h"
#include "comm/nccl/nccl_communicator.h"

namespace ivy::comm {

// An operation that NCCL has accepted in a group that is still open. Implemented by DeviceBackend.
class GroupedOperation {
 public:
  virtual ~GroupedOperation() = default;
  // Called when the group has ended. `ended` is empty if NCCL has put the operation on its stream;
  // otherwise it is the reason why not.
  virtual Outcome finish(const MaybeFailure& ended) = 0;
};

class DeviceGroup {
 public:
  // Returns this thread's group, or null if none is open.
  static DeviceGroup* current();
  // Groups nest; only the outermost end() counts.
  static void begin();
  // Returns the first failure of an operation, or FailedPrecondition if no group is open.
  static Outcome end();

  // Call before the first operation is passed to NCCL.
  MaybeFailure open();
  void add(nccl::DeviceCommunicator& device, std::unique_ptr<GroupedOperation> operation);

 private:
  Outcome finish_all();

  std::size_t depth_ = 0;
  const nccl::Library* library_ = nullptr;  // Null until NCCL's group has started.
  std::vector<nccl::DeviceCommunicator*> devices_;
  std::vector<std::unique_ptr<GroupedOperation>> operations_;
};

}  // namespace ivy::comm
