// SPDX-License-Identifier: Apache-2.0
// Converts the end of a call to an agent into a transport's failure, in plain words. Pure; thread:
// any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/links/host_link.h"
#include "proto/contract/status.h"

namespace ivy {

// How a gRPC call has ended, without gRPC's headers.
struct AgentStatus {
  int code = 0;         // gRPC's code; 0: success.
  std::string message;  // From the agent, or from gRPC itself.
  std::string need;     // The trailer "ivy-need": the architecture whose bundle the agent lacks.
  std::string wait;     // The trailer "ivy-wait": what the agent waits for, such as a file system.
};

// The agent of a call, and how far the connection to it got.
struct AgentEndpoint {
  std::string host;
  std::string address;  // Numeric; empty: over the Unix socket.
  std::uint16_t port = 0;
  std::string socket;              // Path of the Unix socket.
  std::string self;                // The user's certificate: "user/alice serial 4f02".
  bool is_verified = false;        // The agent's certificate was verified.
  bool connected = false;          // The agent has answered.
  bool redial = false;             // The job is running already, so a temporary failure is retried.
  bool opened = false;             // The agent has opened the job.
  bool timed_out = false;          // No data arrived in time, and the call was cancelled.
  std::optional<Error> rejection;  // Why the agent's certificate was rejected.
};

// Names the agent in messages: "the agent on node7 (10.0.0.7 port 7411)", "this host's agent
// (/run/...)".
std::string describe(const AgentEndpoint& endpoint);

// Returns the failure of a link.
LinkDown agent_failure(const AgentEndpoint& endpoint, const AgentStatus& status);

// Returns the error of a request of ivyctl.
Error agent_error(const AgentEndpoint& endpoint, const AgentStatus& status);

// True if another address of the same name may work: this one did not answer, or refused the
// connection.
bool is_about_the_address(LinkFailure failure);

}  // namespace ivy
