// SPDX-License-Identifier: Apache-2.0
// Places the agent and its jobs in cgroups. A process may not live in a cgroup that has others
// below it, and the service's own cgroup must not hold the jobs: so the agent moves into a leaf of
// the cgroup that it was started in, and wardens are started in one beside it.
//
//   ivy-agent@alice.service/     delegated to us by the unit (Delegate=yes)
//     agent/                     this process
//     jobs/                      wardens and supervisors; each makes its job's cgroup below
//
// Thread: the only one, before gRPC has any.
#pragma once

#include <string>

namespace ivy {

struct UnitCgroup {
  std::string jobs;         // Directory for AgentServiceOptions::jobs_cgroup; empty: none.
  std::string description;  // "cgroup DIR", or the reason why there is none. For Facts and the log.
};

// Makes both and moves this process. Never fails: without a cgroup of ours, jobs are held by the
// containment that their supervisors find (agent/node/README.md, "Containment").
UnitCgroup enter_unit_cgroup();

}  // namespace ivy
