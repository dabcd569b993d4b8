// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/choose_containment.h"

#include "agent/node/spawn/cgroup.h"
#include "agent/node/spawn/process_tree.h"

namespace ivy {

std::unique_ptr<Containment> make_containment(const ContainmentRequest& request) {
  if (request.in_step)
    return std::make_unique<ProcessTree>(request, "the scheduler's step has its own cgroup");
  Result<std::unique_ptr<Containment>> cgroup = make_cgroup(request);
  if (cgroup.ok()) return std::move(cgroup).value();
  return std::make_unique<ProcessTree>(request, cgroup.error().message);
}

}  // namespace ivy
