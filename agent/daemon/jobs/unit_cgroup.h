// SPDX-License-Identifier: Apache-2.0
// Places the agent and its jobs in cgroups. Only leaf cgroups may contain processes, and the
// agent's own cgroup must not contain the jobs: so the agent moves into a child of the cgroup that
// it was started in, and wardens are started in another child.
//
//   ivy-agent@alice.service/     delegated to us by the unit (Delegate=yes)
//     agent/                     this process
//     jobs/                      wardens and supervisors, each with its job's cgroup below
//
// Thread: the process's only thread, before gRPC starts others.
#pragma once

#include <string>

namespace ivy {

struct UnitCgroup {
  std::string jobs;         // For AgentServiceOptions::jobs_cgroup. Empty if there is no cgroup.
  std::string description;  // "cgroup DIR", or why there is none. Shown by Facts and the log.
};

// Makes both cgroups and moves this process into the first. Never fails: without a cgroup,
// supervisors choose another containment (agent/node/spawn/README.md, "Containment").
UnitCgroup enter_unit_cgroup();

}  // namespace ivy
