// SPDX-License-Identifier: Apache-2.0
// Sends a request to the agents of many hosts at the same time, for `ivyctl`: lists their jobs, or
// stops a job. This host's agent is reached over its Unix socket, and every other one over TCP with
// the user's certificate.
//
// Thread: the loop's. Nothing blocks. There is exactly one answer for each host, from the loop, at
// the deadline at the latest. Lifetime: the context outlives the last answer (keep the shared
// pointer). If the loop is stopped earlier, no further answer follows.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/status.h"

namespace ivy {

// A job as the agent of one of its hosts knows it.
struct JobEntry {
  RemoteText job_id;
  std::int64_t opened_at_unix_s = 0;
  RemoteText user;
  RemoteText launcher_host;
  RemoteText program;     // Without its arguments, which may hold secrets.
  RemoteText name;        // --name; empty: none.
  bool attached = false;  // A launcher is connected through this agent now.
};

// Lists the jobs on each host. Errors, whose message names the host and whose fix says what to do:
// NotFound: no agent is configured (there is no agent.toml, or for this host no socket).
// Unavailable: no agent answered, or it rejected the request. Unauthenticated: a certificate was
// rejected. DeadlineExceeded. Also the errors of load_agent_identity().
void list_jobs(boost::asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
               const std::vector<Host>& hosts, std::chrono::milliseconds deadline,
               std::function<void(const Host&, const Result<std::vector<JobEntry>>&)> answered);

struct StopOrder {
  std::string job_id;
  std::optional<std::chrono::milliseconds> grace;  // Time from TERM to KILL; empty: the job's own.
};

struct StopAnswer {
  std::uint32_t supervisors = 0;  // Supervisors that were told to stop. They may still be running.
  std::uint32_t with_grace = 0;   // How many of them support the grace of the order.
};

// Orders the agents to stop a job on these hosts. Unavailable also means that the agent is too old.
void stop_job(boost::asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
              const std::vector<Host>& hosts, const StopOrder& order,
              std::chrono::milliseconds deadline,
              std::function<void(const Host&, const Result<StopAnswer>&)> answered);

}  // namespace ivy
