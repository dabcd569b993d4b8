// SPDX-License-Identifier: Apache-2.0
// How the workers of a host compete with other programs in the kernel's scheduler. Pure but for
// apply_share(); thread: any.
//
// With autogroup (Linux, `/proc/sys/kernel/sched_autogroup_enabled`) and no cpu cgroup, each
// session gets one share of a busy processor, and a yield hands the processor over within a session
// only. Workers that have a processor each want a share each; workers that share processors want to
// hand them to one another.
#pragma once

#include <cstddef>

#include "proto/contract/core_list.h"

namespace ivy {

struct ProcessorShare {
  bool own_sessions = true;  // Each worker has its own; otherwise all share ours.
  int autogroup_nice = 0;    // Nice of the shared session: as many sessions' weight, up to nine.
};

// The share for this number of workers on this number of processors.
ProcessorShare share_of(std::size_t workers, std::size_t processors);

// Processors that this process may run on.
std::size_t own_processor_count();

// Gives this process's session its weight. Only a privileged user may raise it: for others the
// session silently keeps one share.
void apply_share(const ProcessorShare& share);

}  // namespace ivy
