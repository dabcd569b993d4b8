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
  // Paths that may wait while a disk hangs; further ones are left to the kernel.
  static constexpr std::size_t kMaxWaiting = 1024;

  // directory: holds all files that will come.
  explicit SyncThread(std::string directory) : directory_(std::move(directory)) {}
  ~SyncThread();

  // Syncs this file and its entry in the directory soon. A file that is gone by then is skipped.
  void sync(const std::string& path);

 private:
  void sync_waiting();

  const std::string directory_;
  std::mutex mutex_;  // Guards the next.
  std::vector<std::string> waiting_;
  boost::asio::thread_pool thread_{1};
};

// Syncs a directory at once, on the caller's thread.
void sync_directory(const std::string& path);

}  // namespace ivy
