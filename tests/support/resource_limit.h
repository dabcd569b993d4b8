// SPDX-License-Identifier: Apache-2.0
// Lowers a limit of this process for a while, as `ulimit` does.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace ivy::test {

// Sets the soft limit of a resource (RLIMIT_...), and restores it at the end.
class ResourceLimit {
 public:
  ResourceLimit(__rlimit_resource resource, rlim_t soft) : resource_(resource) {
    EXPECT_EQ(getrlimit(resource_, &before_), 0);
    const rlimit limit = {soft, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &limit), 0);
  }
  ~ResourceLimit() { EXPECT_EQ(setrlimit(resource_, &before_), 0); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_ = {};
};

// While it exists, this process cannot open another descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    for (int fd = 0; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
  }
  ~NoDescriptors() {
    for (const int fd : taken_) close(fd);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  // Not 0, because poll() rejects more entries than the limit.
  const ResourceLimit limit_{RLIMIT_NOFILE, 32};
  std::vector<int> taken_;
};

// Returns the processor time that this process uses within `duration`.
inline std::chrono::nanoseconds processor_time_of(std::chrono::milliseconds duration) {
  const auto used = [] {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const std::chrono::nanoseconds before = used();
  std::this_thread::sleep_for(duration);
  return used() - before;
}

}  // namespace ivy::test
