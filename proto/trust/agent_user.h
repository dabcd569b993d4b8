// SPDX-License-Identifier: Apache-2.0
// This user's identity towards agents, read from the files that agent.toml names, and the check of
// agents' certificates. No gRPC. Thread: any; reads small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/trust/agent_certificate.h"
#include "proto/trust/agent_config.h"

namespace ivy {

struct AgentIdentity {
  std::uint16_t port = kDefaultAgentPort;
  std::string certificate_pem;  // The certificate, followed by its chain.
  std::string key_pem;
  TrustAnchor anchor;
  CertificateIdentity self;
};

// Returns nothing if this user has no agent.toml. Fails if a file cannot be read or is malformed,
// or if this user's certificate has expired, is from another CA, or may not launch; the fix names
// the command that helps.
Result<std::optional<AgentIdentity>> load_agent_identity(const Environment& environment,
                                                         std::int64_t now_unix_s);

// Checks that this is the certificate of the agent of `host_name` (as the user typed it) and that
// this agent may serve this user. The error is a whole sentence about that certificate.
Result<CertificateIdentity> check_agent(const AgentIdentity& own_identity,
                                        const std::string& host_name, const std::string& chain_pem,
                                        std::int64_t now_unix_s);

}  // namespace ivy
