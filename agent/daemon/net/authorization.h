// SPDX-License-Identifier: Apache-2.0
// Decides who may call the agent, and so who may start a job. Every call of agent_service.cc starts
// with authorize_caller():
//
//   Unix socket    the agent's own user or root, which the acceptor has checked
//   TLS            a certificate of the agent's user, checked by AgentCredentials::check_client()
//   plaintext      any user of this host, only with --insecure-loopback
//
// Thread: any.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "proto/contract/status.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {

class AgentCredentials;
class HandshakeLimiter;

struct Caller {
  bool local = false;            // Connected to the Unix socket, so the agent's user or root.
  CertificateIdentity identity;  // Set only for connections over TCP.
  std::string address;           // "10.77.0.1:41234", or "unix socket".
  // Returns "user/alice serial 4f02" or "unix socket", for the audit line and List.
  std::string certificate() const;
};

// Identifies the caller. Returns PermissionDenied if it may not launch here: it has no certificate,
// or one of another user, or one that was revoked or has expired since the connection was made.
// Logs each rejection with its reason.
Result<Caller> authorize_caller(const grpc::CallbackServerContext& context);

// The rules of this process. They are global, because gRPC passes a call only its context.
struct AuthorizationPolicy {
  std::string user;
  const AgentCredentials* credentials = nullptr;  // Null if the agent does not serve TLS.
  HandshakeLimiter* handshakes = nullptr;
  bool plaintext_loopback = false;
};
// Set before the server starts, cleared (with null) after it has ended.
void set_authorization_policy(std::shared_ptr<const AuthorizationPolicy> policy);

// Converts gRPC's "ipv6:%5B::1%5D:99" to "[::1]:99". Pure.
std::string plain_peer_name(const std::string& grpc_peer);

}  // namespace ivy
