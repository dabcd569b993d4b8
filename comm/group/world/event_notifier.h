// SPDX-License-Identifier: Apache-2.0
// Passes events of the job to threads that wait at sockets and so cannot wait for the supervisor's
// page or for the store as well. Uses one thread per process, which sleeps until there is an event.
//
// Thread: any. Lifetime: remove an eventfd before closing it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/wire/status_page.h"

namespace ivy::comm {

// Implemented by PageEvents (event_notifier.cc) and StoreEvents (job_member.cc).
class EventSource {
 public:
  virtual ~EventSource() = default;
  // Blocks until there have been more than `count` events. Returns false if there will be no more
  // events, or if stop() was called.
  virtual bool await(std::uint64_t count) = 0;
  // Ends await(), from another thread.
  virtual void stop() = 0;
};

// Returns the events of the supervisor's page, which must outlive the source.
std::unique_ptr<EventSource> make_page_events(const comm_status::StatusPage& page);

class EventNotifier {
 public:
  // All objects that the source refers to must outlive the notifier.
  explicit EventNotifier(std::unique_ptr<EventSource> source);
  ~EventNotifier();
  EventNotifier(const EventNotifier&) = delete;
  EventNotifier& operator=(const EventNotifier&) = delete;

  // Adds an eventfd that is written to at every event.
  void add(int eventfd);
  void remove(int eventfd);
  // Returns the number of events so far.
  std::uint64_t event_count() const { return event_count_.load(std::memory_order_acquire); }

 private:
  void run();

  const std::unique_ptr<EventSource> source_;
  std::atomic<std::uint64_t> event_count_{0};
  std::mutex mutex_;  // Guards eventfds_.
  std::vector<int> eventfds_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace ivy::comm
