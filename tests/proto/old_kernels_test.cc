// SPDX-License-Identifier: Apache-2.0
// System calls under a seccomp profile that returns EPERM for calls that it does not know.
#include "proto/os/old_kernels.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "proto/os/blocking.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

bool forbid_newer_calls() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat2, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Runs a check in a child under the filter. Returns 0 if it holds, or 77 without seccomp.
int in_old_sandbox(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid_newer_calls()) _exit(77);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OldKernels, AccessFallsBackIfTheNewerCallIsForbidden) {
  const int result = in_old_sandbox([] {
    return effective_access("/bin/sh", X_OK) == 0 &&
           effective_access("/no/such/file", X_OK) == ENOENT &&
           effective_access("/proc/self/status", X_OK) == EACCES;
  });
  if (result == 77) GTEST_SKIP() << "there is no seccomp here";
  EXPECT_EQ(result, 0);
}

TEST(OldKernels, ExplainsAForbiddenPidfd) {
  const int result = in_old_sandbox([] {
    if (open_pidfd(getpid()) >= 0 || errno != EPERM) return false;
    const Error error = pidfd_error("watch ivy-node", errno);
    return error.message == "watch ivy-node: Operation not permitted" &&
           error.fix.find("seccomp") != std::string::npos;
  });
  if (result == 77) GTEST_SKIP() << "there is no seccomp here";
  EXPECT_EQ(result, 0);
}

TEST(OldKernels, ExplainsThreadsThatCannotBeStarted) {
  EXPECT_EQ(clone_fix(), "");
  const int result = in_old_sandbox([] {
    bool is_explained = false;
    std::vector<std::function<void()>> loop;
    BlockingPool pool([&](std::function<void()> function) { loop.push_back(std::move(function)); });
    const auto work = []() -> Result<int> { return 1; };
    pool.run("the file system", std::chrono::seconds(5), work, [&](const Result<int>& result) {
      is_explained = result.ok() || result.error().fix.find("clone3") != std::string::npos;
    });
    for (int waits = 0; loop.empty() && waits < 500; ++waits) usleep(10'000);
    for (const auto& function : loop) function();
    return is_explained;
  });
  if (result == 77) GTEST_SKIP() << "there is no seccomp here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace ivy
