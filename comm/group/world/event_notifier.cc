// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/event_notifier.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/transports/shm/futex.h"

namespace ivy::comm {
namespace {

// The kernel wakes it; this is for a kernel that cannot wait for two words (futex.h).
constexpr std::chrono::seconds kRecheck{10};

}  // namespace

EventNotifier::EventNotifier(const comm_status::StatusPage& page) {
  const std::uint32_t now = page.news().load(std::memory_order_acquire);
  await_ = [this, page, seen = now](std::uint64_t) mutable { return await_change(page, seen); };
  stop_ = [this] { futex_wake_all(ending_); };
  thread_ = background_thread([this] { run(); });
}

EventNotifier::EventNotifier(std::function<bool(std::uint64_t)> await, std::function<void()> stop)
    : await_(std::move(await)), stop_(std::move(stop)) {
  thread_ = background_thread([this] { run(); });
}

EventNotifier::~EventNotifier() {
  ending_.store(1);
  stop_();
  thread_.join();
}

void EventNotifier::add(int eventfd) {
  const std::lock_guard lock(mutex_);
  eventfds_.push_back(eventfd);
}

void EventNotifier::remove(int eventfd) {
  const std::lock_guard lock(mutex_);
  std::erase(eventfds_, eventfd);
}

bool EventNotifier::await_change(const comm_status::StatusPage& page, std::uint32_t& seen) {
  while (ending_.load() == 0) {
    const std::uint32_t now = page.news().load(std::memory_order_acquire);
    if (now != seen) {
      seen = now;
      return true;
    }
    futex_wait({&ending_, 0}, {&page.news(), now}, kRecheck);
  }
  return false;
}

void EventNotifier::run() {
  while (ending_.load() == 0 && await_(event_count_.load())) {
    event_count_.fetch_add(1, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    const std::uint64_t one = 1;
    for (const int eventfd : eventfds_) static_cast<void>(!write(eventfd, &one, sizeof one));
  }
}

}  // namespace ivy::comm
