// SPDX-License-Identifier: Apache-2.0
// Questions to many hosts' agents at once, for `ivyctl`: which jobs live there, and to end one.
// This host is asked over its agent's Unix socket, every other one over TCP with the user's
// certificate.
//
// Thread: the loop's. Nothing blocks: every host is asked at the same time, and each is answered
// for exactly once, from the loop, no later than the deadline. Lifetime: the context outlives the
// last answer (keep the shared pointer); a loop that is stopped earlier takes the rest along.
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

// A job as its host's agent knows it.
struct JobEntry {
  RemoteText job_id;
  std::int64_t opened_at_unix_s = 0;
  RemoteText user;
  RemoteText launcher_host;
  RemoteText program;     // Without its arguments, which may hold secrets.
  RemoteText name;        // --name; empty: none.
  bool attached = false;  // A launcher has a transport through this agent now.
};

// Errors (message names the host, fix says what to do): NotFound when no agent is configured
// (neither agent.toml nor, for this host, a socket); Unavailable when it refuses or does not
// answer; Unauthenticated and PermissionDenied when a certificate does not do; DeadlineExceeded.
void list_jobs(boost::asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
               const std::vector<Host>& hosts, std::chrono::milliseconds deadline,
               std::function<void(const Host&, const Result<std::vector<JobEntry>>&)> answered);

struct StopOrder {
  std::string job_id;
  std::optional<std::chrono::milliseconds> grace;  // From TERM to KILL; nothing: the job's own.
};

struct StopAnswer {
  std::uint32_t supervisors = 0;  // Supervisors that were asked to end; they end later.
  std::uint32_t with_grace = 0;   // The number of these that take the order's grace period.
};

// Asks the hosts' agents to end what they have of a job, in order. Unimplemented: that agent is too
// old.
void stop_job(boost::asio::io_context& loop, const std::shared_ptr<TransportContext>& context,
              const std::vector<Host>& hosts, const StopOrder& order,
              std::chrono::milliseconds deadline,
              std::function<void(const Host&, const Result<StopAnswer>&)> answered);

}  // namespace ivy
