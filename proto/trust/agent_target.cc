#include "proto/trust/agent_target.h"

#include <charconv>

#include "proto/contract/text.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {
namespace {

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

}  // namespace

std::string agent_target_text(const AgentTarget& target) {
  return target.name + " " + with_port(target.address, target.port);
}

Result<AgentTarget> parse_agent_target(const std::string& text) {
  const Error malformed{Code::kInvalidArgument, "a target is \"NAME ADDRESS:PORT\""};
  const std::size_t blank = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (blank == std::string::npos || blank == 0 || colon == std::string::npos || colon < blank)
    return malformed;
  AgentTarget target;
  target.name = text.substr(0, blank);
  std::string address = text.substr(blank + 1, colon - blank - 1);
  const bool has_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (has_brackets) address = address.substr(1, address.size() - 2);
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, target.port);
  const std::string plain = address.substr(0, address.find('%'));
  if (parsed.ec != std::errc() || parsed.ptr != end || target.port == 0 ||
      canonical_address(plain).empty() || is_ipv6(plain) != has_brackets)
    return malformed;
  target.address = address;
  return target;
}

std::string grpc_target(const std::string& address, std::uint16_t port) {
  const std::string suffix = ":" + std::to_string(port);
  if (!is_ipv6(address)) return "ipv4:" + address + suffix;
  std::string escaped = address;
  // A scope's percent sign would be taken for an escape.
  if (const std::size_t scope = escaped.find('%'); scope != std::string::npos)
    escaped.replace(scope, 1, "%25");
  return "ipv6:[" + escaped + "]" + suffix;
}

}  // namespace ivy
