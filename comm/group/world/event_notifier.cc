// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/event_notifier.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/transports/shm/futex.h"

namespace ivy::comm {
namespace {

// The kernel wakes the thread at an event or stop(). This only limits one sleep; kernels that
// cannot wait for two words end it sooner (futex.h).
constexpr std::chrono::seconds kRecheck{10};

class PageEvents final : public EventSource {
 public:
  explicit PageEvents(const comm_status::StatusPage& page)
      : page_(page), seen_(page.event_count().load(std::memory_order_acquire)) {}

  bool await(std::uint64_t /*count*/) override {
    while (stopping_.load() == 0) {
      const std::uint32_t now = page_.event_count().load(std::memory_order_acquire);
      if (now != seen_) {
        seen_ = now;
        return true;
      }
      futex_wait({&stopping_, 0}, {&page_.event_count(), now}, kRecheck);
    }
    return false;
  }
  void stop() override {
    stopping_.store(1);
    futex_wake_all(stopping_);
  }

 private:
  const comm_status::StatusPage page_;
  std::uint32_t seen_;
  std::atomic<std::uint32_t> stopping_{0};  // A futex.
};

}  // namespace

std::unique_ptr<EventSource> make_page_events(const comm_status::StatusPage& page) {
  return std::make_unique<PageEvents>(page);
}

EventNotifier::EventNotifier(std::unique_ptr<EventSource> source) : source_(std::move(source)) {
  thread_ = background_thread([this] { run(); });
}

EventNotifier::~EventNotifier() {
  is_ending_.store(true);
  source_->stop();
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

void EventNotifier::run() {
  while (!is_ending_.load() && source_->await(event_count_.load())) {
    event_count_.fetch_add(1, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    const std::uint64_t one = 1;
    for (const int eventfd : eventfds_) static_cast<void>(!write(eventfd, &one, sizeof one));
  }
}

}  // namespace ivy::comm
