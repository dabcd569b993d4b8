// SPDX-License-Identifier: Apache-2.0
// The code that a new process runs between its creation and exec. It makes system calls directly
// rather than through the C library, because the process may share its parent's memory and thereby
// errno. See "Spawning" in README.md here. Thread: the only thread of the new process.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "agent/node/spawn/child_calls.h"
#include "agent/node/spawn/spawn_limits.h"

namespace ivy {

// The step at which the child failed; sent over the report pipe with an errno.
enum class ChildStep : int {
  kGroup,
  kCgroup,
  kBind,
  kStdin,
  kStdout,
  kStderr,
  kChdir,
  kExec,
  kCount
};

struct ChildReport {
  ChildStep step;
  int error;
};

// Everything that the child needs, prepared before the clone, because the child must not allocate.
struct ChildPlan {
  const char* executable = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  const char* working_directory = nullptr;
  std::array<int, 3> standard_fds{-1, -1, -1};
  bool own_session = false;
  int cgroup_fd = -1;
  // Bit sets in the kernel's format. Null means no restriction.
  const unsigned long* processors = nullptr;
  long processors_bytes = 0;
  const unsigned long* memory_nodes = nullptr;
  long memory_node_bits = 0;
  std::optional<SpawnLimits> limits;        // If absent, the supervisor's limits apply.
  std::optional<std::uint64_t> core_limit;  // Soft limit of core files if `limits` is absent.
  int report_fd = -1;                       // Pipe for the report; -1 if memory is shared.
  ChildReport* shared_report = nullptr;     // Receives the report if memory is shared.
};

// Becomes the worker of this plan. must_join_cgroup: the process was not created in its cgroup.
[[noreturn]] void become_worker(const ChildPlan& plan, bool must_join_cgroup);

}  // namespace ivy
