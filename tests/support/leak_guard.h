// SPDX-License-Identifier: Apache-2.0
// A member of a fixture that fails a test which leaves a child process or an open descriptor
// behind.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>

namespace ivy::test {

class LeakGuard {
 public:
  LeakGuard() : descriptors_(count_descriptors()) {}
  ~LeakGuard() {
    EXPECT_EQ(count_descriptors(), descriptors_) << "a descriptor was left open or closed too much";
    const pid_t child = waitpid(-1, nullptr, WNOHANG);
    EXPECT_TRUE(child < 0 && errno == ECHILD) << "a child process was left behind: " << child;
  }
  LeakGuard(const LeakGuard&) = delete;
  LeakGuard& operator=(const LeakGuard&) = delete;

  static int count_descriptors() {
    DIR* const directory = opendir("/proc/self/fd");
    if (directory == nullptr) return -1;
    int count = 0;
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
  }

 private:
  int descriptors_;
};

}  // namespace ivy::test
