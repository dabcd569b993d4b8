// Containment in a cgroup v2 of the job's own, below the cgroup that this process was born in.
// Nothing that is born in it can leave without the right to write to another cgroup, and one write
// to cgroup.kill ends it whole. Thread: the supervisor's (or the warden's) only thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/node/spawn/containment.h"

namespace ivy {

// Makes or finds the job's cgroup and tries that a process can be born in it. The error says which
// step is refused; the caller then takes the process tree.
Result<std::unique_ptr<Containment>> make_cgroup(const ContainmentRequest& request);

}  // namespace ivy
