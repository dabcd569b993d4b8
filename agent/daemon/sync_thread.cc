#include "agent/daemon/sync_thread.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <utility>

namespace ivy {
namespace {

void sync_at(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace

void sync_directory(const std::string& path) { sync_at(path, O_DIRECTORY); }

SyncThread::~SyncThread() {
  thread_.stop();
  thread_.join();
}

void SyncThread::sync(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) return;
    waiting_.push_back(path);
    // An earlier call has posted sync_waiting() already.
    if (waiting_.size() > 1) return;
  }
  boost::asio::post(thread_, [this] { sync_waiting(); });
}

void SyncThread::sync_waiting() {
  std::vector<std::string> paths;
  {
    const std::lock_guard lock(mutex_);
    paths = std::exchange(waiting_, {});
  }
  for (const std::string& path : paths) sync_at(path, O_NONBLOCK);
  sync_directory(directory_);
}

}  // namespace ivy
