// SPDX-License-Identifier: Apache-2.0
// Explains the end of a call to an agent, for the transport, in plain words. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/links/host_link.h"
#include "proto/contract/status.h"

namespace ivy {

// How a call of gRPC's ended, without gRPC's headers.
struct AgentStatus {
  int code = 0;         // gRPC's, 0 is a good end.
  std::string message;  // The agent's, or gRPC's own.
  std::string need;     // "ivy-need" of the trailer: the architecture whose bundle is missing.
  std::string wait;     // The trailer "ivy-wait": what the agent waits for, such as a file system.
};

// The agent, and how far the connection to it got.
struct AgentPlace {
  std::string host;
  std::string address;  // Numeric; empty: the Unix socket.
  std::uint16_t port = 0;
  std::string socket;     // Path of the Unix socket.
  std::string self;       // Our certificate: "user/alice serial 4f02".
  bool believed = false;  // We saw its certificate, and it is good.
  bool connected = false;
  bool redial = false;  // The job runs already: what may pass is tried again.
  bool opened = false;
  bool timed_out = false;        // The call was cancelled because no data arrived.
  std::optional<Error> refusal;  // The reason for rejecting the agent's certificate.
};

// "the agent on node7 (10.0.0.7 port 7411)", "this host's agent (/run/...)".
std::string describe(const AgentPlace& place);

LinkDown agent_failure(const AgentPlace& place, const AgentStatus& status);

// The same for questions of ivyctl.
Error agent_error(const AgentPlace& place, const AgentStatus& status);

// Another address of the same name may do better: nothing answered, or it refused the connection.
bool is_about_the_address(LinkFailure failure);

}  // namespace ivy
