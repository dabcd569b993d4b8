// SPDX-License-Identifier: Apache-2.0
#include "comm/group/device/device_group.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/nccl/library.h"

namespace ivy::comm {
namespace {

std::unique_ptr<DeviceGroup>& own_group() {
  thread_local std::unique_ptr<DeviceGroup> group;
  return group;
}

// The same group for current(), which every operation on a device calls. A thread-local object with
// a destructor would cost an initialization check at each access.
thread_local DeviceGroup* open_group = nullptr;

Failure group_failure(const nccl::Library& library, nccl::Status status) {
  return make_failure(FailureKind::kTransport,
                      "NCCL: a group of operations: " + library.name_of_error(status));
}

}  // namespace

DeviceGroup* DeviceGroup::current() { return open_group; }

void DeviceGroup::begin() {
  if (own_group() == nullptr) own_group() = std::make_unique<DeviceGroup>();
  open_group = own_group().get();
  ++own_group()->depth_;
}

Outcome DeviceGroup::end() {
  std::unique_ptr<DeviceGroup>& group = own_group();
  if (group == nullptr) {
    Failure failure = make_failure(FailureKind::kOther, "no group of operations was started");
    failure.code = static_cast<std::int32_t>(Code::kFailedPrecondition);
    return Outcome(failure);
  }
  if (--group->depth_ > 0) return {};
  const std::unique_ptr<DeviceGroup> ended = std::move(group);
  open_group = nullptr;
  return ended->finish_all();
}

MaybeFailure DeviceGroup::open() {
  if (library_ != nullptr) return std::nullopt;
  const Result<const nccl::Library*> library = nccl::Library::load();
  if (!library.ok()) return make_failure(FailureKind::kOther, library.error().message);
  const nccl::Status status = (*library)->functions().group_start();
  if (status != nccl::kSuccess) return group_failure(**library, status);
  library_ = *library;
  return std::nullopt;
}

void DeviceGroup::add(nccl::DeviceCommunicator& device,
                      std::unique_ptr<GroupedOperation> operation) {
  if (std::find(devices_.begin(), devices_.end(), &device) == devices_.end()) {
    devices_.push_back(&device);
  }
  operations_.push_back(std::move(operation));
}

Outcome DeviceGroup::finish_all() {
  if (library_ == nullptr) return {};
  nccl::Status status = nccl::kSuccess;
  {
    // Lock in a fixed order, because other threads may have groups with the same devices.
    std::sort(devices_.begin(), devices_.end());
    std::vector<std::unique_lock<std::mutex>> locks;
    locks.reserve(devices_.size());
    for (nccl::DeviceCommunicator* const device : devices_) {
      locks.push_back(device->lock_calls());
    }
    status = library_->functions().group_end();
  }
  MaybeFailure failure;
  if (status != nccl::kSuccess && status != nccl::kInProgress) {
    failure = group_failure(*library_, status);
  }
  Outcome first;
  for (const std::unique_ptr<GroupedOperation>& operation : operations_) {
    const Outcome outcome = operation->finish(failure);
    if (first.code == 0) first = outcome;
  }
  return first;
}

}  // namespace ivy::comm
