// SPDX-License-Identifier: Apache-2.0
#include "comm/group/device/device_parts.h"

#include <algorithm>
#include <utility>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/driver.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

// How long an operation on the device may still run after one of its ranks has finalized.
constexpr std::chrono::seconds kLeftTimeout{5};

}  // namespace

MaybeFailure DeviceFailureDetector::check() {
  SharedGroup* const local = host_.local();
  if (local != nullptr && local->is_broken()) {
    if (MaybeFailure found = local->failure()) return found;
  }
  if (failure_.is_set()) return failure_.get();
  const std::lock_guard lock(mutex_);
  if (detector_ == nullptr) {
    detector_ = job_.make_failure_detector(ranks_.name(), ranks_.members(), ranks_.rank());
  }
  MaybeFailure found = detector_->check();
  if (!found || !has_finished(*found)) return found;
  const auto now = steady_now();
  if (!left_at_) left_at_ = now;
  if (now - *left_at_ < kLeftTimeout) return std::nullopt;
  return found;
}

// Returns whether the rank has finalized rather than died. It may leave as soon as its own part of
// an operation is done, while others still wait for theirs.
bool DeviceFailureDetector::has_finished(const Failure& found) const {
  SharedGroup* const local = host_.local();
  if (found.kind != FailureKind::kRankDied || local == nullptr) return false;
  std::uint32_t member = 0;
  for (const std::int32_t rank : ranks_.local_ranks()) {
    if (ranks_.world_rank(rank) == found.rank) return local->has_left(member);
    ++member;
  }
  return false;
}

SideStream::~SideStream() {
  if (stream_ == nullptr || nccl::is_tainted()) return;
  const nccl::Driver* const driver = nccl::Driver::in_use();
  const nccl::Driver::Current current(*driver, device_);
  driver->free_stream(stream_);
}

Result<void> SideStream::give(nccl::DeviceOperation& operation) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, operation.device);
  IVY_CHECK(current.result());
  operation.after = IVY_TRY(nccl::StreamMark::behind(*driver, operation.device, operation.stream));
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr) stream_ = IVY_TRY(driver->make_stream());
  device_ = operation.device;
  operation.stream = stream_;
  operation.is_enqueued = false;
  return {};
}

void DeviceDisplay::show(const nccl::Enqueued* oldest, const DeviceCheck::LastOperation& last) {
  const std::uint64_t number = oldest != nullptr ? oldest->number : last.number;
  if (number == 0 || (number == number_ && (oldest != nullptr) == is_running_)) return;
  if (!display_) {
    display_.emplace(job_.rows(), ranks_, ranks_.name() + " (devices)");
  }
  if (is_running_) display_->finish(true);
  is_running_ = oldest != nullptr;
  if (number == number_) return;
  number_ = number;
  displayed_ = oldest != nullptr ? oldest->shape : last.shape;
  display_->begin(displayed_, number);
  display_->entered();
  if (oldest == nullptr) display_->finish(true);
}

std::shared_ptr<nccl::Parent> InheritedDeviceState::parent_for(const Membership& survivors) && {
  if (revoked == nullptr) return nullptr;
  auto parent = std::make_shared<nccl::Parent>();
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const bool is_survivor = std::any_of(survivors.members().begin(), survivors.members().end(),
                                         [&](const Member& survivor) {
                                           return survivor.job_rank == members[rank].job_rank &&
                                                  survivor.incarnation == members[rank].incarnation;
                                         });
    if (!is_survivor) parent->excluded.push_back(static_cast<int>(rank));
  }
  const bool are_all_known = members.size() - parent->excluded.size() == survivors.members().size();
  if (!are_all_known || parent->excluded.empty()) return nullptr;
  parent->revoked = std::move(revoked);
  parent->key = std::move(key);
  return parent;
}

}  // namespace ivy::comm
