// SPDX-License-Identifier: Apache-2.0
// A job as a row of `ps` and as the object of `status`, whether it is running or has ended. Thread:
// any.
#pragma once

#include <string>
#include <vector>

#include "launcher/ctl/ctl_table.h"
#include "launcher/job/control/ended_jobs.h"
#include "proto/wire/ctl.pb.h"

namespace ivy {

ListRow running_row(const std::string& job_id, const ctl::JobDescription& job);
ListRow ended_row(const EndedJob& ended);
// Returns the row of a job that cannot be queried, with the reason.
ListRow silent_row(const std::string& job_id, const std::string& why);
// Prints such rows below the names of their columns.
void print_jobs(const std::vector<ListRow>& rows, bool as_json);
// Returns the state as it is shown: "running", "running (orphan)".
std::string running_state(const ctl::JobDescription& job);
// Returns "node[1-2] (x86_64), node3 (aarch64)"; only the names if the architectures are unknown.
std::string hosts_text(const ctl::JobDescription& job);
// Returns the hosts without ranks that wait to replace others.
std::vector<std::string> spare_names(const ctl::JobDescription& job);
// Returns "2 spares: node[5-6]"; empty if no host waits to replace another.
std::string spares_text(const ctl::JobDescription& job);
// Returns "hosts: " and hosts_text() if a host's architecture differs from this machine's.
std::string other_machines(const ctl::JobDescription& job);

}  // namespace ivy
