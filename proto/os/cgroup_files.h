// What the files of cgroups tell: a process's cgroup, its processes, its counters and its memory
// limits. Versions 1 and 2. Thread: any; reads files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// The directory of the cgroup that a process is in, from the texts of /proc/PID/mountinfo and
// /proc/PID/cgroup. Mounts of a part of the hierarchy (cgroup namespaces, containers) are followed;
// nothing when the cgroup is not visible below any mount. Pure.
std::optional<std::string> cgroup_v2_directory(std::string_view mountinfo, std::string_view cgroup);
// The same for this process, read from its /proc files.
std::optional<std::string> own_cgroup_v2_directory();
// The same of version 1, in the hierarchy of a controller: "memory", "cpu". Pure.
std::optional<std::string> cgroup_v1_directory(std::string_view mountinfo, std::string_view cgroup,
                                               std::string_view controller);

// The number behind `key` in a "key value" file such as memory.events; nothing when it is absent.
std::optional<long> read_cgroup_counter(const std::string& file, std::string_view key);
// Counts out-of-memory kills around this process: in its memory cgroup of version 1, else of
// version 2, else on the whole machine; -1 when the kernel counts none.
long surrounding_memory_kills();

// What the memory limits of a cgroup's directory and of those above it still allow, with what the
// kernel could take back from files; ~0: there is no limit. Version 1 or 2.
std::uint64_t memory_left_below_limits(const std::string& directory);
// The same for the cgroups of this process.
std::uint64_t surrounding_memory_left();

// The processes in this cgroup itself, without those below it; 0 is a process of another pid
// namespace.
std::vector<pid_t> pids_in_cgroup(const std::string& directory);

}  // namespace ivy
