// SPDX-License-Identifier: Apache-2.0
#include "proto/os/heartbeat.h"

#include <signal.h>

#include <system_error>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace {

// A thread that wakes up this late was stopped together with the loop (Ctrl-Z, a paused virtual
// machine), so the loop is not reported as silent.
constexpr std::int64_t kStoppedNs = 1'000'000'000;

}  // namespace

Heartbeat::Heartbeat(std::chrono::nanoseconds period, Beat beat)
    : period_(period), beat_(std::move(beat)) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::turned() {
  turned_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  if (std::exchange(was_started_, true)) return;
  // Signals are for the loop's thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // The limit of processes was reached, so only the loop's own heartbeats remain.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Heartbeat::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  std::int64_t due_ns = monotonic_ns() + period_.count();
  for (;;) {
    const auto wait = std::chrono::nanoseconds(due_ns - monotonic_ns());
    if (ended_.wait_for(lock, wait, [this] { return is_ending_; })) return;
    const std::int64_t now = monotonic_ns();
    if (now - due_ns > kStoppedNs) turned_ns_.store(now, std::memory_order_relaxed);
    due_ns = now + period_.count();
    beat_(std::chrono::nanoseconds(now - turned_ns_.load(std::memory_order_relaxed)));
  }
}

}  // namespace ivy
