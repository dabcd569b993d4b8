// SPDX-License-Identifier: Apache-2.0
// The peer of a call, identified once per connection: by credentials of the Unix socket or by the
// certificate of the TLS handshake. Thread: any; values only.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "proto/contract/status.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {

struct AgentPeer {
  bool local = false;            // On the Unix socket: the agent's own user or root.
  CertificateIdentity identity;  // Only for connections over TCP.
  std::string address;           // "10.77.0.1:41234", or "unix socket".
  // "user/alice serial 4f02" or "unix socket": for the audit line and List.
  std::string certificate() const;
};

// PermissionDenied when the certificate is one that may not launch here: another user's, revoked or
// expired since the connection was made. Every refusal has been logged with its reason.
Result<AgentPeer> peer_of(const grpc::CallbackServerContext& context);

}  // namespace ivy
