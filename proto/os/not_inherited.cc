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
  for (std::size_t index = 0; index < inodes.size(); ++index) {
    const auto descriptor = static_cast<int>(index);
    if (inodes[index] != 0 && inode_of(descriptor) == inodes[index]) ::close(descriptor);
    inodes[index] = 0;
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
  const auto index = static_cast<std::size_t>(descriptor);
  if (index >= inodes.size()) inodes.resize(index + 1, 0);
  inodes[index] = inode_of(descriptor);
}

void close(int descriptor) {
  const std::unique_lock<std::mutex> guard = lock();
  const auto index = static_cast<std::size_t>(descriptor);
  if (index < registry().inodes.size()) registry().inodes[index] = 0;
  ::close(descriptor);
}

}  // namespace ivy::not_inherited
