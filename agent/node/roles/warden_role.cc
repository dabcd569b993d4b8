// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/warden_role.h"

#include <cstdio>
#include <string>

#include "agent/node/roles/warden.h"
#include "agent/node/spawn/user_scope.h"
#include "agent/node/supervisor/supervisor.h"
#include "proto/contract/core_limit.h"
#include "proto/contract/exit_code.h"
#include "proto/os/short_slice.h"

namespace ivy {

int run_warden_role(int argc, char** argv) {
  prefer_short_slices();
  const Result<WardenStart> start = parse_warden_arguments(argc - 2, argv + 2);
  if (!start.ok()) {
    std::fprintf(stderr, "%s\n", start.error().message.c_str());
    return kExitUsage;
  }
  // Enter the cgroup before querying the user's systemd: with a cgroup made for us, no other is
  // needed.
  const Result<void> entered = enter_cgroup(*start);
  if (!entered.ok()) return reject_to_start(*start, entered.error());
  const std::string unit = "ivy-" + start->job_id.substr(0, 12) + "-" + std::to_string(start->host);
  const bool has_place = start->step_task != 0 || !start->cgroup.empty();
  if (!has_place && enter_user_scope(unit, argv) == ScopeStep::kRunsInScope) return 0;
  // Not earlier: a process that the user's systemd starts instead inherits the limit.
  leave_no_core();
  return run_warden(*start, run_supervisor);
}

}  // namespace ivy
