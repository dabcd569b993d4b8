// SPDX-License-Identifier: Apache-2.0
// Operations that are on a stream and whose calls have returned. A thread watches the oldest until
// the device has finished it, and also a call that is still inside NCCL. NCCL finishes a
// communicator's operations in the order of their calls, on whatever streams they are.
//
// The thread polls every few milliseconds while there is anything to watch, so that calls need not
// wake it; after kIdle without a call it sleeps until the next one.
//
// Thread: any. The first operation starts the watching thread. Lifetime: outlived by the driver and
// the owner.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

struct Enqueued {
  Event event = nullptr;  // Recorded after the operation on its stream.
  std::uint64_t number = 0;
  OperationShape shape;
  std::chrono::nanoseconds timeout{0};  // Measured from `since`.
  // When it was called or when the one before it finished, whichever is later; unset until then.
  std::chrono::steady_clock::time_point since;
  std::vector<std::uint32_t> regions;  // The serials of registered memory that it uses.
  // Called when the operation has ended, with the failure if there was one. May be empty.
  std::function<void(const MaybeFailure&)> ended;
};

// Returns, for example, "all_reduce(sum) of 1000 f32, operation 17".
std::string describe(const Enqueued& operation);

// The owner of enqueued operations: DeviceCommunicator. Called by the thread that watches them,
// without a lock.
class EnqueuedOwner {
 public:
  virtual ~EnqueuedOwner() = default;
  // Returns why `oldest` cannot finish, or nothing. `oldest` is null if no operation is in
  // progress.
  virtual MaybeFailure check(const Enqueued* oldest) = 0;
  // Called with the first failure, which ends the watch.
  virtual void enqueued_failed(const Failure& failure) = 0;
  // Called every kTick while there is anything to watch, and until kIdle after the last call, with
  // the oldest unfinished operation or null. Returns a failure that it has found, or nothing.
  virtual MaybeFailure tick(const Enqueued* oldest) = 0;
  // Returns true if operations that finish now do so because the communicator is broken.
  virtual bool is_broken() const = 0;
};

// A queue that keeps its memory: std::deque allocates and frees every few elements, which costs
// measurable time in an operation on a device. Thread: one at a time.
template <class T>
class KeptQueue {
 public:
  bool empty() const { return size() == 0; }
  std::size_t size() const { return all_.size() - first_; }
  T& operator[](std::size_t index) { return all_[first_ + index]; }
  T& front() { return all_[first_]; }
  const T& front() const { return all_[first_]; }
  auto begin() { return all_.begin() + static_cast<std::ptrdiff_t>(first_); }
  auto end() { return all_.end(); }

  void push_back(T&& one) {
    // Instead of growing, moves the remaining elements to the front if they are less than half.
    if (all_.size() == all_.capacity() && first_ > size()) {
      all_.erase(all_.begin(), begin());
      first_ = 0;
    }
    all_.push_back(std::move(one));
  }
  void pop_front() {
    front() = T();
    if (++first_ < all_.size()) return;
    all_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> all_;
  std::size_t first_ = 0;
};

class EnqueuedOperations {
 public:
  static constexpr std::chrono::milliseconds kTick{50};
  static constexpr std::chrono::seconds kIdle{2};

  explicit EnqueuedOperations(EnqueuedOwner& owner) : owner_(owner) {}
  // Requires that end() was called before.
  ~EnqueuedOperations();
  EnqueuedOperations(const EnqueuedOperations&) = delete;
  EnqueuedOperations& operator=(const EnqueuedOperations&) = delete;

  // Waits until fewer than `most` operations are unfinished, or one has failed.
  void await_room(std::size_t most);
  // Call before a call of NCCL, which is then watched as `operation`. Sets the operation's event
  // and time. `device` must be this thread's current device.
  Result<void> begin_call(const Driver& driver, int device, Enqueued& operation);
  // Call when NCCL has returned and the event was recorded: watches the operation from here on.
  void watch(Enqueued&& operation);
  // Call when NCCL has returned with nothing to watch.
  void end_call(Event event);

  // Returns an event of this device, which must be this thread's current one; give_back() keeps it
  // for reuse.
  Result<Event> take_event(const Driver& driver, int device);
  void give_back(Event event);

  // Lets the thread tick for another kIdle: the rank has called an operation that is not enqueued.
  void stay_awake();
  // From now on there is always something to watch: graphs contain operations, and nothing reports
  // when they run.
  void watch_always();
  // Waits until all operations are done or one has failed, and stops the thread.
  void end();
  // Returns true if some operation was never confirmed to be complete.
  bool has_lost();
  // Returns true while an operation that uses this region may run.
  bool is_using(std::uint32_t region);

 private:
  void run();
  bool is_idle() const;
  void start_thread();
  Result<Event> take_event_locked(const Driver& driver, int device);
  Result<std::size_t> count_done(std::unique_lock<std::mutex>& lock);
  void take_done(std::unique_lock<std::mutex>& lock, MaybeFailure& failure);
  void end_all(std::unique_lock<std::mutex>& lock, const Failure& failure);
  std::optional<Enqueued> oldest() const;

  EnqueuedOwner& owner_;
  std::mutex mutex_;
  std::condition_variable has_more_;
  std::condition_variable has_less_;
  // Guarded by mutex_:
  const Driver* driver_ = nullptr;  // Null until the first event is taken.
  int device_ = -1;
  KeptQueue<Enqueued> pending_;
  std::atomic<std::size_t> pending_count_{0};  // pending_.size(), for readers without mutex_.
  struct {
    Enqueued operation;
    bool is_under_way = false;
  } calling_;  // The call that is inside NCCL.
  std::vector<Event> free_events_;
  std::chrono::steady_clock::time_point used_at_;
  bool is_asleep_ = false;    // The thread sleeps until it is woken.
  bool is_for_ever_ = false;  // Set by watch_always().
  bool is_quiet_ = false;     // The thread is in a long pause, because nothing was in progress.
  bool is_filling_ = false;   // pending_ is at least half full, which ends such a pause.
  bool is_ending_ = false;
  MaybeFailure failure_;  // The reason why the thread has stopped; set once.
  std::thread thread_;
};

}  // namespace ivy::comm::nccl
