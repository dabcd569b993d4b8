// SPDX-License-Identifier: Apache-2.0
// How the workers of a host compete with other programs in the kernel's scheduler. Pure except for
// apply_share(); thread: any.
//
// With autogroup (/proc/sys/kernel/sched_autogroup_enabled) and no cpu cgroup, each session gets
// one share of a busy processor, and a yield hands the processor over only within the session. So
// workers that have a processor each should have separate sessions, and workers that share
// processors should share a session.
#pragma once

#include <cstddef>

#include "proto/contract/core_list.h"

namespace ivy {

struct ProcessorShare {
  bool own_sessions = true;  // Each worker has a separate session; otherwise all share ours.
  int autogroup_nice = 0;    // Nice value that gives the shared session the weight of all its
                             // workers, at most about nine.
};

// Returns the share for this number of workers on this number of processors.
ProcessorShare share_of(std::size_t workers, std::size_t processors);

// Returns the number of processors that this process may run on.
std::size_t own_processor_count();

// Sets the weight of this process's session. Only a privileged user may raise it; for other users
// the session keeps its weight, without an error.
void apply_share(const ProcessorShare& share);

}  // namespace ivy
