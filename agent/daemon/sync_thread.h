// Makes files durable behind the loop's back: an fsync may take a fifth of a second on a busy disk,
// for which no job's bytes would move.
//
// Thread: calls from the loop's; fsync on its own. Lifetime: the destructor waits for the fsync
// that is under way, and forgets the others.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace ivy {

class SyncThread {
 public:
  // While a disk stands still; what comes beyond that is left to the kernel.
  static constexpr std::size_t kMaxWaiting = 1024;

  // directory: of all files that will come.
  explicit SyncThread(std::string directory) : directory_(std::move(directory)) {}
  ~SyncThread();

  // This file and its entry in the directory, soon. Whoever is gone by then needs it no more.
  void sync(const std::string& path);

 private:
  void sync_waiting();

  const std::string directory_;
  std::mutex mutex_;  // Guards the next.
  std::vector<std::string> waiting_;
  boost::asio::thread_pool thread_{1};
};

// Right now, by whoever calls.
void sync_directory(const std::string& path);

}  // namespace ivy
