// Another host's agent as an address: in OpenJob.target, and as gRPC wants it. Pure. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

struct AgentTarget {
  std::string name;     // The name that its certificate must have.
  std::string address;  // In numbers; IPv6 without brackets.
  std::uint16_t port = 0;
};

// "NAME ADDRESS:PORT", an IPv6 address in brackets.
std::string agent_target_text(const AgentTarget& target);
// Parses such a text; fails with InvalidArgument.
Result<AgentTarget> parse_agent_target(const std::string& text);

// "ipv4:10.0.0.7:7411" or "ipv6:[fe80::1%25eth0]:7411": a name that gRPC does not look up.
std::string grpc_target(const std::string& address, std::uint16_t port);

}  // namespace ivy
