// SPDX-License-Identifier: Apache-2.0
#include "proto/os/not_inherited.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace ivy::not_inherited {
namespace {

struct Registry {
  std::mutex mutex;  // Also guards `inodes` against concurrent forks.
  // The inode of each registered descriptor, by number; 0 if not registered. A descriptor that was
  // closed by other means may refer to another file now.
  std::vector<ino_t> inodes;
};

// Never destroyed, because children may be forked until the process exits.
Registry& registry() {
  static auto* const one = new Registry;
  return *one;
}

ino_t inode_of(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

// Calls only functions that are allowed in the child of a multithreaded process.
void close_in_child() {
  std::vector<ino_t>& inodes = registry().inodes;
  for (std::size_t place = 0; place < inodes.size(); ++place) {
    const auto descriptor = static_cast<int>(place);
    if (inodes[place] != 0 && inode_of(descriptor) == inodes[place]) ::close(descriptor);
    inodes[place] = 0;
  }
  registry().mutex.unlock();
}

void watch_forks() {
  static const int watched = pthread_atfork([] { registry().mutex.lock(); },
                                            [] { registry().mutex.unlock(); }, close_in_child);
  static_cast<void>(watched);
}

}  // namespace

std::unique_lock<std::mutex> lock() {
  watch_forks();
  return std::unique_lock(registry().mutex);
}

void add(int descriptor) {
  std::vector<ino_t>& inodes = registry().inodes;
  const auto place = static_cast<std::size_t>(descriptor);
  if (place >= inodes.size()) inodes.resize(place + 1, 0);
  inodes[place] = inode_of(descriptor);
}

void close(int descriptor) {
  const std::unique_lock<std::mutex> guard = lock();
  const auto place = static_cast<std::size_t>(descriptor);
  if (place < registry().inodes.size()) registry().inodes[place] = 0;
  ::close(descriptor);
}

}  // namespace ivy::not_inherited
