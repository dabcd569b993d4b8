// SPDX-License-Identifier: Apache-2.0
// Passes events of the job on to threads that wait at sockets: events of the supervisor's page,
// whose futex they cannot wait for too, or without a supervisor those of the store. One thread per
// process, which sleeps until there is an event.
//
// Thread: any. Lifetime: the source of the events outlives it; a bell is removed before its
// descriptor is closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/wire/status_page.h"

namespace ivy::comm {

class EventNotifier {
 public:
  explicit EventNotifier(const comm_status::StatusPage& page);
  // `await` returns when there have been more than `number` events; false: there will be none, or
  // `stop` was called.
  EventNotifier(std::function<bool(std::uint64_t number)> await, std::function<void()> stop);
  ~EventNotifier();
  EventNotifier(const EventNotifier&) = delete;
  EventNotifier& operator=(const EventNotifier&) = delete;

  // Adds an eventfd that is written to at every event.
  void add(int eventfd);
  void remove(int eventfd);
  // The number of events so far.
  std::uint64_t event_count() const { return event_count_.load(std::memory_order_acquire); }

 private:
  bool await_change(const comm_status::StatusPage& page, std::uint32_t& seen);
  void run();

  std::function<bool(std::uint64_t)> await_;
  std::function<void()> stop_;
  std::atomic<std::uint64_t> event_count_{0};
  std::mutex mutex_;  // Guards eventfds_, which the thread rings.
  std::vector<int> eventfds_;
  std::atomic<std::uint32_t> ending_{0};  // A futex: 1 ends the thread.
  std::thread thread_;
};

}  // namespace ivy::comm
