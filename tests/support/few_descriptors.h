// SPDX-License-Identifier: Apache-2.0
// A process without a free descriptor, and what it costs the processor.
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

// While it exists, this process cannot open another descriptor.
class FewDescriptors {
 public:
  FewDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    // Not 0, because poll() rejects more entries than the limit.
    const rlimit limit = {32, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int fd = 0; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
  }
  ~FewDescriptors() {
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
    for (const int fd : taken_) close(fd);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_ = {};
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
