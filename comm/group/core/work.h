// SPDX-License-Identifier: Apache-2.0
// Asynchronous operations: one thread per communicator, started by the first of them, runs them in
// the order in which they were called.
//
// Thread: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/stream_mark.h"
#include "proto/os/clock.h"

namespace ivy::comm {

// The result of an operation. A success is small, because it is the common case.
class Outcome {
 public:
  Outcome() = default;  // An outcome without a failure is success.
  explicit Outcome(const Failure& failure) : code(failure.code), failure_(failure) {}

  std::int32_t code = 0;
  // Requires that code is not 0.
  const Failure& failure() const { return *failure_; }

 private:
  MaybeFailure failure_;
};

struct WorkTiming {
  std::chrono::duration<double> queued{0};
  std::chrono::duration<double> ran{0};
};

class Work {
 public:
  Work() : called_(steady_now()) {}

  // Returns nothing if the operation is not done within that time. A negative time means no limit.
  std::optional<Outcome> wait(std::chrono::milliseconds at_most);
  // Returns nothing if the operation is not done yet.
  std::optional<Outcome> test();
  WorkTiming timing();
  // For an operation on a device, which is done when the device reaches `mark`. It succeeds if its
  // communicator is not broken by then (`is_broken`); otherwise finish() is called. Call set_mark()
  // before the work is returned to the caller.
  void set_mark(std::shared_ptr<nccl::StreamMark> mark,
                std::shared_ptr<const std::atomic<bool>> is_broken);
  // For an operation that was captured into a graph: only streams of that graph can wait for it.
  void finish_captured();
  // Makes `stream` wait for the operation and returns success, or returns the outcome if it is
  // already known. If the operation is not on a stream, blocks until it is done. Always returns an
  // outcome.
  std::optional<Outcome> hold_back(void* stream);
  // Writes the token to the descriptor when the operation is done, or immediately if it already is.
  // The token is dropped if a pipe is full.
  struct Notice {
    int descriptor = -1;
    std::uint64_t token = 0;
  };
  void notify(const Notice& notice);

  // Called by the thread that runs the operation.
  void start();
  void finish(const Outcome& outcome);

 private:
  void check_mark();
  std::optional<Outcome> wait_for_mark(std::chrono::steady_clock::time_point until);

  std::shared_ptr<nccl::StreamMark> mark_;  // Set before another thread can access this object.
  std::shared_ptr<const std::atomic<bool>> is_broken_;  // Set together with mark_.
  bool is_captured_ = false;
  std::mutex mutex_;
  std::condition_variable is_done_;
  std::optional<Outcome> outcome_;
  std::vector<Notice> notices_;
  const std::chrono::steady_clock::time_point called_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_;
};

class WorkQueue {
 public:
  // Limit of queued calls, so that a program that never waits for its works gets an error.
  static constexpr std::size_t kPendingMax = 65'536;

  WorkQueue() = default;
  // Finishes queued operations as aborted. Waits for a running one; the owner must make sure that
  // it ends.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Returns false if kPendingMax calls are waiting.
  bool push(std::shared_ptr<Work> work, std::function<Outcome()> body);
  // Returns whether a call is waiting or running. A call that must stay in order checks this first.
  bool is_busy() const { return pending_.load(std::memory_order_acquire) != 0; }

 private:
  struct Task {
    std::shared_ptr<Work> work;
    std::function<Outcome()> body;
  };
  void run();

  const Outcome no_memory_{failure_of(std::bad_alloc())};
  std::mutex mutex_;  // Guards tasks_, is_ending_ and thread_.
  std::condition_variable has_more_;
  std::deque<Task> tasks_;
  bool is_ending_ = false;
  std::thread thread_;
  std::atomic<std::size_t> pending_{0};
};

}  // namespace ivy::comm
