// SPDX-License-Identifier: Apache-2.0
// The launcher's knowledge of agents apart from the user's identity (proto/trust/agent_user.h):
// this host's socket, and warnings before a certificate expires. No gRPC. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_user.h"

namespace ivy {

// The socket of this host's agent that is safe to talk to: it is ours or root's, and so is its
// directory, which no other user may write. NotFound says where it was looked for. An
// $IVY_AGENT_SOCKET that is set but empty stands for no agent.
Result<std::string> find_agent_socket(const Environment& environment);

// "your certificate user/alice expires in 3 days (...): ivy-agent renew --user alice"; empty while
// more than two weeks are left.
std::string own_expiry_warning(const AgentIdentity& us, std::int64_t now_unix_s);
std::string host_expiry_warning(const std::string& host, std::int64_t expires_at,
                                std::int64_t now_unix_s);

}  // namespace ivy
