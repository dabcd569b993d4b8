// SPDX-License-Identifier: Apache-2.0
// Reads the files of cgroups, versions 1 and 2: a process's cgroup, its processes, its counters and
// its memory limits. Thread: any; reads files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Returns the directory of a process's cgroup, from the texts of /proc/PID/mountinfo and
// /proc/PID/cgroup. Handles mounts of a part of the hierarchy (cgroup namespaces, containers).
// Returns nothing if the cgroup is not visible below any mount. Pure.
std::optional<std::string> cgroup_v2_directory(std::string_view mountinfo, std::string_view cgroup);
// Returns the directory of this process's cgroup, from its /proc files.
std::optional<std::string> own_cgroup_v2_directory();
// Returns the directory of a process's cgroup in the version 1 hierarchy of a controller, such as
// "memory" or "cpu", from the texts of the process's mountinfo and cgroup files. Returns nothing if
// it is not visible below any mount. Pure.
std::optional<std::string> cgroup_v1_directory(std::string_view mountinfo, std::string_view cgroup,
                                               std::string_view controller);

// Returns the number after `key` in a "key value" file such as memory.events, or nothing if absent.
std::optional<long> read_cgroup_counter(const std::string& file, std::string_view key);
// Returns the number of out-of-memory kills around this process: in its memory cgroup of version 1
// or else of version 2, or else on the whole machine. Returns -1 if the kernel does not count them.
long surrounding_memory_kills();

// Returns the memory that the limits of a cgroup and its ancestors still allow, including memory
// that the kernel could reclaim from files, or ~0 without a limit. Supports versions 1 and 2.
std::uint64_t memory_left_below_limits(const std::string& directory);
// Returns the memory that the limits of this process's cgroups still allow, or ~0 without a limit.
std::uint64_t surrounding_memory_left();

// Returns the processes in this cgroup, not in its children. 0 stands for a process of another pid
// namespace.
std::vector<pid_t> pids_in_cgroup(const std::string& directory);

}  // namespace ivy
