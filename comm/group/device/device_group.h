// SPDX-License-Identifier: Apache-2.0
// Operations on devices that one thread gives to NCCL together: between begin() and end() they are
// only noted, and end() puts all of them on their streams. So a rank can send to a rank that sends
// to it, and several small operations cost one launch.
//
// Thread: each has its own group.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/group/core/work.h"
#include "comm/nccl/communicator.h"

namespace ivy::comm {

class DeviceGroup {
 public:
  // Returns this thread's group; null: none is open.
  static DeviceGroup* current();
  // They nest; the outermost end() counts.
  static void begin();
  // Returns the first failure of an operation. FailedPrecondition: no group is open.
  static Outcome end();

  // Call before the first operation is passed to NCCL.
  MaybeFailure open();
  // `finish` is called once NCCL has put the operation on its stream, or with why it has not.
  void add(nccl::DeviceCommunicator& device, std::function<Outcome(const MaybeFailure&)> finish);

 private:
  Outcome finish_all();

  std::size_t depth_ = 0;
  const nccl::Library* library_ = nullptr;  // Null: NCCL's group has not started.
  std::vector<nccl::DeviceCommunicator*> devices_;
  std::vector<std::function<Outcome(const MaybeFailure&)>> waiting_;
};

}  // namespace ivy::comm
