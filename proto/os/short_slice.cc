// SPDX-License-Identifier: Apache-2.0
#include "proto/os/short_slice.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace ivy {

void prefer_short_slices() {
  constexpr unsigned long kSliceNs = 100'000;  // The shortest slice that the kernel accepts.
  errno = 0;
  const int nice_value = getpriority(PRIO_PROCESS, 0);
  // Do not change a process with a negative nice value, because its children would lose that value.
  if (errno != 0 || nice_value < 0) return;
  if (syscall(SYS_sched_getscheduler, 0) != SCHED_NORMAL) return;
  sched_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.sched_policy = SCHED_NORMAL;
  attributes.sched_flags = SCHED_FLAG_RESET_ON_FORK;
  attributes.sched_nice = nice_value;
  attributes.sched_runtime = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0u);
}

}  // namespace ivy
