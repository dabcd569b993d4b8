// SPDX-License-Identifier: Apache-2.0
// A thread that calls a function periodically and needs neither the loop nor a file system, so that
// peers receive heartbeats even if this process's loop hangs. Thread: the loop's, except `beat`.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace ivy {

class Heartbeat {
 public:
  // Runs on the heartbeat's thread; must not block. `loop_silent` is the time since the last
  // turned().
  using Beat = std::function<void(std::chrono::nanoseconds loop_silent)>;

  Heartbeat(std::chrono::nanoseconds period, Beat beat);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Call it from a timer of the loop that fires more often than the period. Starts the thread.
  void turned();

 private:
  void run();

  const std::chrono::nanoseconds period_;
  const Beat beat_;
  std::atomic<std::int64_t> turned_ns_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  bool was_started_ = false;
  std::thread thread_;
};

}  // namespace ivy
