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
#include "comm/group/work.h"
#include "comm/nccl/communicator.h"

namespace ivy::comm {

class DeviceGroup {
 public:
  // This thread's; null: none has begun.
  static DeviceGroup* current();
  // They nest; the outermost end() counts.
  static void begin();
  // FailedPrecondition: none has begun. The first failure of an operation.
  static Outcome end();

  // Before NCCL is asked for the first operation.
  MaybeFailure open();
  // `finish` is called once NCCL has put the operation on its stream, or with why it has not.
  void add(nccl::DeviceCommunicator& device, std::function<Outcome(const MaybeFailure&)> finish);

 private:
  Outcome finish_all();

  std::size_t depth_ = 0;
  const nccl::Library* library_ = nullptr;  // Null: NCCL's group has not begun.
  std::vector<nccl::DeviceCommunicator*> devices_;
  std::vector<std::function<Outcome(const MaybeFailure&)>> waiting_;
};

}  // namespace ivy::comm
