// Hands the news of the supervisor's page on to threads that wait at sockets: those cannot wait for
// a futex too. One thread per process, which sleeps until there are news.
//
// Thread: any. Lifetime: the page outlives it; a bell is removed before its descriptor is closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/status_page.h"

namespace ivy::comm {

class JobBell {
 public:
  explicit JobBell(const comm_status::StatusPage& page);
  ~JobBell();
  JobBell(const JobBell&) = delete;
  JobBell& operator=(const JobBell&) = delete;

  // An eventfd that is written to with every change of the page's news.
  void add(int eventfd);
  void remove(int eventfd);

 private:
  void run();

  const comm_status::StatusPage page_;
  std::mutex mutex_;
  std::vector<int> bells_;                // Guarded by mutex_.
  std::atomic<std::uint32_t> ending_{0};  // A futex: 1 ends the thread.
  std::thread thread_;
};

}  // namespace ivy::comm
