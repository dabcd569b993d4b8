// Operations that are on a stream and whose calls have returned: a thread watches the oldest until
// the device has done it. They end in the order of their calls.
//
// Thread: any; started by the first of them. Lifetime: the driver outlives it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/driver.h"

namespace ivy::comm::nccl {

struct Enqueued {
  Event event = nullptr;  // Recorded behind it.
  std::uint64_t sequence = 0;
  std::string what;
  std::chrono::steady_clock::time_point deadline;
};

class EnqueuedOperations {
 public:
  // `look` says what keeps one from ending, again and again; `found` is told of the first failure,
  // with which the watching ends.
  EnqueuedOperations(std::function<std::optional<Failure>(const Enqueued&)> look,
                     std::function<void(const Failure&)> found)
      : look_(std::move(look)), found_(std::move(found)) {}
  // Call end() before.
  ~EnqueuedOperations();
  EnqueuedOperations(const EnqueuedOperations&) = delete;
  EnqueuedOperations& operator=(const EnqueuedOperations&) = delete;

  // An event of this device, which has to be this thread's; give_back() keeps it for the next.
  Result<Event> take_event(const Driver& driver, int device);
  void give_back(Event event);
  // Watches it from here on.
  void watch(Enqueued operation);
  // Waits until all are done, or one has failed, and ends the thread.
  void end();
  // True if one was never confirmed complete.
  bool has_lost();

 private:
  void run();

  const std::function<std::optional<Failure>(const Enqueued&)> look_;
  const std::function<void(const Failure&)> found_;
  std::mutex mutex_;
  std::condition_variable has_more_;
  std::condition_variable has_less_;
  // What follows is guarded by mutex_.
  const Driver* driver_ = nullptr;  // Null: no event was taken.
  int device_ = -1;
  std::deque<Enqueued> pending_;
  std::vector<Event> free_events_;
  bool is_ending_ = false;
  bool has_failed_ = false;  // The thread has found a failure and stopped.
  std::thread thread_;
};

}  // namespace ivy::comm::nccl
