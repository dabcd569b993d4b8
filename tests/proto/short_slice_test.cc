// SPDX-License-Identifier: Apache-2.0
#include "proto/os/short_slice.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>

namespace ivy {
namespace {

// The first version of the kernel's sched_attr. Its header conflicts with the C library's.
struct Attributes {
  std::uint32_t size = 48;
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

std::optional<Attributes> attributes_of(pid_t pid) {
  Attributes attributes;
  if (syscall(SYS_sched_getattr, pid, &attributes, sizeof attributes, 0u) != 0) return std::nullopt;
  return attributes;
}

struct Seen {
  Attributes self;
  Attributes child;
};

// Runs in a separate process, so that the other tests keep their slices. Returns nothing on
// failure.
std::optional<Seen> slices_after_the_call() {
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  const pid_t process = fork();
  if (process == 0) {
    prefer_short_slices();
    Seen seen;
    seen.self = attributes_of(0).value_or(Attributes());
    const pid_t child = fork();
    if (child == 0) {
      seen.child = attributes_of(0).value_or(Attributes());
      _exit(write(ends[1], &seen, sizeof seen) == sizeof seen ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    _exit(status == 0 ? 0 : 1);
  }
  close(ends[1]);
  Seen seen;
  const bool has_answered = read(ends[0], &seen, sizeof seen) == sizeof seen;
  close(ends[0]);
  int status = 1;
  waitpid(process, &status, 0);
  return has_answered && status == 0 ? std::optional<Seen>(seen) : std::nullopt;
}

TEST(ShortSlice, IsSetAndNotInherited) {
  const std::optional<Attributes> before = attributes_of(0);
  if (!before) GTEST_SKIP() << "this kernel has no sched_getattr";
  if (before->policy != SCHED_OTHER || before->nice < 0)
    GTEST_SKIP() << "a process with a higher priority keeps its slice";
  if (before->runtime_ns == 0) GTEST_SKIP() << "this kernel has no slices: Linux 6.12 and newer";
  const std::optional<Seen> after = slices_after_the_call();
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->self.runtime_ns, 100'000u);
  EXPECT_EQ(after->self.policy, static_cast<unsigned>(SCHED_OTHER));
  EXPECT_EQ(after->self.nice, before->nice);
  EXPECT_EQ(after->child.runtime_ns, before->runtime_ns);
  EXPECT_EQ(after->child.nice, before->nice);
}

TEST(ShortSlice, SkipsAProcessWithAHigherPriority) {
  errno = 0;
  const int own = getpriority(PRIO_PROCESS, 0);
  const pid_t process = fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    if (errno != 0 || setpriority(PRIO_PROCESS, 0, -1) != 0) _exit(2);
    const std::optional<Attributes> before = attributes_of(0);
    prefer_short_slices();
    const std::optional<Attributes> after = attributes_of(0);
    if (!before || !after) _exit(2);
    const bool is_same = before->runtime_ns == after->runtime_ns && before->flags == after->flags &&
                         after->nice == -1;
    _exit(is_same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "nice " << own << " cannot be lowered here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ivy
