// SPDX-License-Identifier: Apache-2.0
// Watches operations that are on a stream after their calls have returned. A thread polls the
// oldest of them until the device has finished it, and also watches a call that is still inside
// NCCL. NCCL finishes a communicator's operations in the order of their calls, whichever streams
// they are on.
//
// The thread polls at a pace that depends on the communicator's use (see Pace). It seldom sleeps,
// so that calls seldom have to wake it.
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
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/kept_queue.h"

namespace ivy::comm::nccl {

struct Enqueued {
  Event event = nullptr;  // Recorded after the operation on its stream.
  std::uint64_t number = 0;
  OperationShape shape;
  std::chrono::nanoseconds timeout{0};  // Measured from `since`.
  // When it was called or when the previous operation finished, whichever is later; unset until
  // then.
  std::chrono::steady_clock::time_point since;
  std::vector<std::uint32_t> regions;  // The serials of registered memory that it uses.
  // Called once the operation is done, or with the failure that ended the watch. May be empty.
  std::function<void(const MaybeFailure&)> on_end;
};

// Returns, for example, "all_reduce(sum) of 1000 f32, operation 17".
std::string describe(const Enqueued& operation);

// The owner of enqueued operations: DeviceCommunicator. Called by the thread that watches them,
// without a lock.
class EnqueuedOwner {
 public:
  virtual ~EnqueuedOwner() = default;
  // Returns a failure because of which `oldest` cannot finish, or nothing. Called at every poll of
  // an operation; with watch_always(), also every kTick if none is in progress (null).
  virtual MaybeFailure check(const Enqueued* oldest) = 0;
  // Does periodic work: publishes this rank's progress and compares it with the other ranks'.
  // Called every kTick unless the thread is asleep. Returns a failure that it has found, or
  // nothing.
  virtual MaybeFailure tick(const Enqueued* oldest) = 0;
  // Called with the first failure, which ends the watch.
  virtual void enqueued_failed(const Failure& failure) = 0;
  // Returns true if operations that finish now do so because the communicator is broken.
  virtual bool is_broken() const = 0;
};

class EnqueuedOperations {
 public:
  static constexpr std::chrono::milliseconds kTick{50};
  static constexpr std::chrono::seconds kIdle{2};

  explicit EnqueuedOperations(EnqueuedOwner& owner) : owner_(owner) {}
  // Requires that drain_and_stop() was called before.
  ~EnqueuedOperations();
  EnqueuedOperations(const EnqueuedOperations&) = delete;
  EnqueuedOperations& operator=(const EnqueuedOperations&) = delete;

  // Waits until fewer than `limit` operations are unfinished, or one has failed.
  void await_room(std::size_t limit);
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

  // Keeps the thread from sleeping for another kIdle: the rank has called an operation that is not
  // enqueued.
  void stay_awake();
  // Keeps the thread from ever sleeping: graphs contain operations, and nothing reports when they
  // run.
  void watch_always();
  // Waits until all operations are done or one has failed, and stops the thread.
  void drain_and_stop();
  // Returns true if some operation was never confirmed to be complete.
  bool has_lost();
  // Returns true while an operation that uses this region may run.
  bool is_using(std::uint32_t region);

 private:
  // How often the thread polls, with the condition for it:
  //   kWatching  an operation is in progress: every 1 to 5 ms
  //   kQuiet     none is, but one was in the last kIdle, or after watch_always(): every 20 ms
  //   kAsleep    otherwise: not until wake()
  // A call wakes the thread if it is asleep; a quiet thread only if the queue is half full.
  enum class Pace : std::uint8_t { kWatching, kQuiet, kAsleep };

  void run();
  void start_thread();
  void wake();
  bool is_idle() const;
  Result<Event> take_event_locked(const Driver& driver, int device);
  std::optional<Enqueued> oldest() const;
  void take_done(std::unique_lock<std::mutex>& lock, MaybeFailure& failure);
  Result<std::size_t> count_done(std::unique_lock<std::mutex>& lock);
  void fail_all(std::unique_lock<std::mutex>& lock, const Failure& failure);

  EnqueuedOwner& owner_;
  std::condition_variable has_more_;
  std::condition_variable has_less_;
  // pending_.size(), for readers without mutex_.
  std::atomic<std::size_t> pending_count_{0};
  std::mutex mutex_;
  // The rest is guarded by mutex_.
  const Driver* driver_ = nullptr;  // Null until the first event is taken.
  int device_ = -1;
  std::vector<Event> free_events_;
  struct {
    Enqueued operation;
    bool is_under_way = false;
  } calling_;  // The call that is inside NCCL.
  KeptQueue<Enqueued> pending_;
  MaybeFailure failure_;  // The reason why the thread has stopped; set once.
  Pace pace_ = Pace::kWatching;
  // When an operation was last called or finished: kIdle later the thread falls asleep.
  std::chrono::steady_clock::time_point active_at_;
  bool always_watches_ = false;
  bool is_stopping_ = false;
  std::thread thread_;  // Started with mutex_ held, joined without.
};

}  // namespace ivy::comm::nccl
