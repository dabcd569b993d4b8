#include "comm/nccl/enqueued.h"

#include <algorithm>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/nccl/apart.h"

namespace ivy::comm::nccl {
namespace {

// The oldest one is looked at so often, at first and in the end.
constexpr std::chrono::microseconds kFirstPause{1'000};
constexpr std::chrono::microseconds kLongestPause{5'000};

}  // namespace

EnqueuedOperations::~EnqueuedOperations() {
  if (driver_ == nullptr || is_tainted()) return;
  const Driver::Current current(*driver_, device_);
  for (const Enqueued& pending : pending_) driver_->free_event(pending.event);
  for (const Event event : free_events_) driver_->free_event(event);
}

Result<Event> EnqueuedOperations::take_event(const Driver& driver, int device) {
  const std::lock_guard lock(mutex_);
  driver_ = &driver;
  device_ = device;
  if (free_events_.empty()) return driver.make_event();
  const Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void EnqueuedOperations::give_back(Event event) {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void EnqueuedOperations::watch(Enqueued operation) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(operation));
  if (!thread_.joinable()) thread_ = background_thread([this] { run(); });
  has_more_.notify_all();
}

void EnqueuedOperations::run() {
  std::unique_lock lock(mutex_);
  const Driver& driver = *driver_;
  const Driver::Current current(driver, device_);
  std::chrono::microseconds sleep = kFirstPause;
  while (true) {
    has_more_.wait(lock, [this] { return is_ending_ || !pending_.empty(); });
    if (is_ending_) return;
    const Enqueued oldest = pending_.front();
    lock.unlock();
    const Result<bool> is_done = driver.is_done(oldest.event);
    std::optional<Failure> failure;
    if (!is_done.ok()) {
      failure = make_failure(FailureKind::kTransport, oldest.what + ": " + is_done.error().message);
    } else if (!*is_done) {
      failure = look_(oldest);
    }
    if (failure) found_(*failure);
    lock.lock();
    if (failure) {
      has_failed_ = true;
      has_less_.notify_all();
      return;
    }
    if (*is_done) {
      free_events_.push_back(oldest.event);
      pending_.pop_front();
      has_less_.notify_all();
      sleep = kFirstPause;
    } else {
      has_more_.wait_for(lock, sleep, [this] { return is_ending_; });
      sleep = std::min(sleep * 2, kLongestPause);
    }
  }
}

void EnqueuedOperations::end() {
  {
    std::unique_lock lock(mutex_);
    // Each has a deadline, and the thread looks for everything that may be in its way.
    has_less_.wait(lock, [this] { return pending_.empty() || has_failed_; });
    is_ending_ = true;
    has_more_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool EnqueuedOperations::has_lost() {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

}  // namespace ivy::comm::nccl
