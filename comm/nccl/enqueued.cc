// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/enqueued.h"

#include <algorithm>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/nccl/abandonable_call.h"
#include "proto/os/clock.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::microseconds;

// The interval of Pace::kWatching doubles from the first to the longest while the oldest operation
// remains the same.
constexpr microseconds kFirstPause{1'000};
constexpr microseconds kLongestPause{5'000};
constexpr microseconds kQuietPause{20'000};

}  // namespace

std::string describe(const Enqueued& operation) {
  return describe(operation.shape) + ", operation " + std::to_string(operation.number);
}

EnqueuedOperations::~EnqueuedOperations() {
  if (driver_ == nullptr || is_tainted()) return;
  const Driver::Current current(*driver_, device_);
  for (const Enqueued& pending : pending_) driver_->free_event(pending.event);
  for (const Event event : free_events_) driver_->free_event(event);
}

Result<Event> EnqueuedOperations::take_event_locked(const Driver& driver, int device) {
  driver_ = &driver;
  device_ = device;
  if (free_events_.empty()) return driver.make_event();
  const Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

Result<Event> EnqueuedOperations::take_event(const Driver& driver, int device) {
  const std::lock_guard lock(mutex_);
  return take_event_locked(driver, device);
}

void EnqueuedOperations::give_back(Event event) {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void EnqueuedOperations::start_thread() {
  if (!thread_.joinable()) thread_ = background_thread([this] { run(); });
  if (pace_ == Pace::kAsleep) wake();
}

void EnqueuedOperations::wake() {
  pace_ = Pace::kWatching;
  has_more_.notify_all();
}

void EnqueuedOperations::await_room(std::size_t limit) {
  if (pending_count_.load(std::memory_order_relaxed) < limit / 2) return;
  std::unique_lock lock(mutex_);
  // A quiet thread would poll too late to keep the queue from filling up.
  if (pending_.size() >= limit / 2 && pace_ == Pace::kQuiet) wake();
  if (pending_.size() < limit) return;
  has_less_.wait(lock, [&] { return pending_.size() < limit || failure_; });
}

Result<void> EnqueuedOperations::begin_call(const Driver& driver, int device, Enqueued& operation) {
  const std::lock_guard lock(mutex_);
  operation.event = IVY_TRY(take_event_locked(driver, device));
  // If earlier operations are pending, this one starts when they are done: take_done() then sets
  // its time.
  if (pending_.empty()) active_at_ = operation.since = steady_now();
  // Member by member: assigning a new object would clear it first.
  calling_.operation.number = operation.number;
  calling_.operation.shape = operation.shape;
  calling_.operation.timeout = operation.timeout;
  calling_.operation.since = operation.since;
  calling_.operation.regions = operation.regions;
  calling_.is_under_way = true;
  start_thread();
  return {};
}

void EnqueuedOperations::watch(Enqueued&& operation) {
  std::unique_lock lock(mutex_);
  if (calling_.is_under_way) operation.since = calling_.operation.since;
  if (pending_.empty() && operation.since == std::chrono::steady_clock::time_point()) {
    operation.since = steady_now();
  }
  calling_.is_under_way = false;
  const auto on_end = failure_ ? operation.on_end : nullptr;
  pending_.push_back(std::move(operation));
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
  start_thread();
  if (!on_end) return;
  lock.unlock();
  on_end(failure_);
}

void EnqueuedOperations::end_call(Event event) {
  const std::lock_guard lock(mutex_);
  calling_.is_under_way = false;
  if (event != nullptr) free_events_.push_back(event);
}

void EnqueuedOperations::stay_awake() {
  const std::lock_guard lock(mutex_);
  if (driver_ == nullptr || failure_) return;
  active_at_ = steady_now();
  start_thread();
}

void EnqueuedOperations::watch_always() {
  const std::lock_guard lock(mutex_);
  always_watches_ = true;
  start_thread();
}

// Returns true if there is nothing to check and the last call was more than kIdle ago, so that it
// is acceptable that the next call has to wake the thread.
bool EnqueuedOperations::is_idle() const {
  return pending_.empty() && !calling_.is_under_way && !always_watches_ &&
         steady_now() - active_at_ > kIdle;
}

std::optional<Enqueued> EnqueuedOperations::oldest() const {
  if (!pending_.empty()) return pending_.front();
  if (calling_.is_under_way) return calling_.operation;
  return std::nullopt;
}

// Returns how many of the oldest operations the device has done. They finish in order, so a binary
// search finds it with few queries; each query takes the driver's lock, which this rank needs to
// call the next operation.
Result<std::size_t> EnqueuedOperations::count_done(std::unique_lock<std::mutex>& lock) {
  const auto is_done = [&](std::size_t index) -> Result<bool> {
    const Event event = pending_[index].event;
    const Driver& driver = *driver_;
    lock.unlock();
    Result<bool> done = driver.is_done(event);
    if (done.ok() && *done && owner_.is_broken()) done = false;
    lock.lock();
    return done;
  };
  std::size_t done = 0;
  // The first operation that is known to be unfinished or was added later; the operations
  // from `done` up to it are undecided.
  std::size_t unknown = pending_.size();
  while (done < unknown) {
    const std::size_t index = done == 0 ? 0 : done + (unknown - done) / 2;
    if (IVY_TRY(is_done(index))) {
      done = index + 1;
    } else {
      unknown = index;
    }
  }
  return done;
}

// Removes the operations that the device has done.
void EnqueuedOperations::take_done(std::unique_lock<std::mutex>& lock, MaybeFailure& failure) {
  const Result<std::size_t> done = count_done(lock);
  if (!done.ok()) {
    failure = make_failure(FailureKind::kTransport,
                           describe(pending_.front()) + ": " + done.error().message);
    return;
  }
  if (*done == 0) return;
  std::vector<std::function<void(const MaybeFailure&)>> callbacks;
  for (std::size_t i = 0; i < *done; ++i) {
    Enqueued& front = pending_.front();
    free_events_.push_back(front.event);
    if (front.on_end) callbacks.push_back(std::move(front.on_end));
    pending_.pop_front();
  }
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
  active_at_ = steady_now();
  if (!pending_.empty()) {
    pending_.front().since = active_at_;
  } else if (calling_.is_under_way) {
    calling_.operation.since = active_at_;
  }
  has_less_.notify_all();
  lock.unlock();
  for (const auto& on_end : callbacks) on_end(std::nullopt);
  lock.lock();
}

void EnqueuedOperations::fail_all(std::unique_lock<std::mutex>& lock, const Failure& failure) {
  failure_ = failure;
  std::vector<std::function<void(const MaybeFailure&)>> callbacks;
  for (Enqueued& one : pending_) {
    if (one.on_end) callbacks.push_back(std::move(one.on_end));
  }
  has_less_.notify_all();
  lock.unlock();
  for (const auto& on_end : callbacks) on_end(failure);
  lock.lock();
}

void EnqueuedOperations::run() {
  std::unique_lock lock(mutex_);
  const Driver& driver = *driver_;
  const Driver::Current current(driver, device_);
  driver.stay_out_of_captures();
  microseconds pause = kFirstPause;
  auto ticked_at = steady_now();
  std::uint64_t last_number = 0;
  while (!is_stopping_) {
    if (is_idle()) {
      pace_ = Pace::kAsleep;
      has_more_.wait(lock, [this] { return is_stopping_ || pace_ != Pace::kAsleep; });
      continue;
    }
    MaybeFailure failure;
    take_done(lock, failure);
    const std::optional<Enqueued> watched = oldest();
    const Enqueued* const one = watched ? &*watched : nullptr;
    const bool is_to_tick = steady_now() - ticked_at >= kTick;
    const bool is_to_check = one != nullptr || (always_watches_ && is_to_tick);
    lock.unlock();
    if (!failure && is_to_check) failure = owner_.check(one);
    if (!failure && is_to_tick) failure = owner_.tick(one);
    if (is_to_tick) ticked_at = steady_now();
    if (failure) owner_.enqueued_failed(*failure);
    lock.lock();
    if (failure) return fail_all(lock, *failure);
    const std::uint64_t number = one != nullptr ? one->number : 0;
    pause = one == nullptr          ? kQuietPause
            : number != last_number ? kFirstPause
                                    : std::min(pause * 2, kLongestPause);
    last_number = number;
    const Pace pace = one == nullptr ? Pace::kQuiet : Pace::kWatching;
    pace_ = pace;
    has_more_.wait_for(lock, pause, [&] { return is_stopping_ || pace_ != pace; });
    pace_ = Pace::kWatching;
  }
}

void EnqueuedOperations::drain_and_stop() {
  {
    std::unique_lock lock(mutex_);
    // This wait ends: every operation has a deadline, and the thread checks for trouble.
    has_less_.wait(lock, [this] { return pending_.empty() || failure_; });
    is_stopping_ = true;
    has_more_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool EnqueuedOperations::has_lost() {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

bool EnqueuedOperations::is_using(std::uint32_t region) {
  const auto uses = [region](const Enqueued& one) {
    return std::find(one.regions.begin(), one.regions.end(), region) != one.regions.end();
  };
  const std::lock_guard lock(mutex_);
  if (failure_) return false;  // An abort has ended all of them.
  return (calling_.is_under_way && uses(calling_.operation)) ||
         std::any_of(pending_.begin(), pending_.end(), uses);
}

}  // namespace ivy::comm::nccl
