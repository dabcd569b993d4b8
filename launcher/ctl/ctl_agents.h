// SPDX-License-Identifier: Apache-2.0
// Queries the agents of several hosts about jobs, in parallel. Blocking, with deadlines. Not
// thread-safe.
#pragma once

#include <functional>
#include <vector>

#include "launcher/links/agent/agent_client.h"
#include "launcher/options/hosts.h"

namespace ivy {

// Calls take() for each job of each host. If a host rejects the call or does not answer, prints an
// error and returns false.
bool list_jobs_on(const std::vector<Host>& hosts,
                  const std::function<void(const Host& host, const JobEntry& job)>& take);
// Orders each host to stop a job, and calls take() with each answer. If a host rejects the call or
// does not answer, prints an error and returns false.
bool stop_job_on(const std::vector<Host>& hosts, const StopOrder& order,
                 const std::function<void(const Host& host, const StopAnswer& answer)>& take);

}  // namespace ivy
