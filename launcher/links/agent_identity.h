// SPDX-License-Identifier: Apache-2.0
// Finds the socket of this host's agent, and warns before a certificate expires. The user's
// identity towards agents is in proto/trust/agent_user.h. Does not use gRPC. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_user.h"

namespace ivy {

// Returns the socket of this host's agent. It is trusted only if the socket and its directory
// belong to this user or to root, and no other user may write to the directory. NotFound names the
// paths that were searched. If $IVY_AGENT_SOCKET is set but empty, there is no agent.
Result<std::string> find_agent_socket(const Environment& environment);

// Returns "your certificate user/alice expires in 3 days (...); renew it: ivy-agent renew --user
// alice"; empty if more than two weeks are left.
std::string own_expiry_warning(const AgentIdentity& own_identity, std::int64_t now_unix_s);
// Returns a warning about the certificate of a host's agent; empty if more than two weeks are left.
std::string host_expiry_warning(const std::string& host, std::int64_t expires_at,
                                std::int64_t now_unix_s);

}  // namespace ivy
