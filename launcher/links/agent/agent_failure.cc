// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_failure.h"

#include <string_view>

namespace ivy {
namespace {

// gRPC's codes that an agent returns; they have the numbers of Code in status.h.
constexpr int kNotFound = static_cast<int>(Code::kNotFound);
constexpr int kAlreadyExists = static_cast<int>(Code::kAlreadyExists);
constexpr int kPermissionDenied = static_cast<int>(Code::kPermissionDenied);
constexpr int kUnauthenticated = static_cast<int>(Code::kUnauthenticated);
constexpr int kUnavailable = static_cast<int>(Code::kUnavailable);
constexpr int kUnimplemented = 12;

bool has(const AgentStatus& status, std::string_view text) {
  return status.message.find(text) != std::string::npos;
}

// True if gRPC never made a connection. The text is that of the gRPC version that is linked
// statically, and ends with the error of the system.
bool never_connected(const AgentEndpoint& endpoint, const AgentStatus& status) {
  return !endpoint.connected &&
         (endpoint.timed_out || has(status, "failed to connect to all addresses"));
}

bool is_refused(const AgentStatus& status) {
  return has(status, "Connection refused") || has(status, "No such file or directory");
}

// True if the TLS handshake failed.
bool is_tls_error(const AgentStatus& status) {
  return has(status, "SSL_ERROR") || has(status, "Handshake failed") || has(status, "alert");
}

// True if the other end closed the connection.
bool is_closed(const AgentStatus& status) {
  return has(status, "Socket closed") || has(status, "onnection reset") ||
         has(status, "roken pipe") || has(status, "Endpoint read failed") ||
         has(status, "andshake read failed") || has(status, "GOAWAY") ||
         has(status, "ransport closed");
}

// Removes gRPC's prefix of the reason: "failed to connect to all addresses; last error: UNKNOWN: ".
std::string core_of(const std::string& message) {
  constexpr std::string_view kLast = "last error: ";
  const std::size_t at = message.rfind(kLast);
  return at == std::string::npos ? message : message.substr(at + kLast.size());
}

std::string address_of(const AgentEndpoint& endpoint) {
  return endpoint.address + " port " + std::to_string(endpoint.port);
}

std::string firewall_fix(const AgentEndpoint& endpoint) {
  return "is " + endpoint.host + " switched on, and does a firewall let " + address_of(endpoint) +
         " through?";
}

LinkDown not_secured(const AgentEndpoint& endpoint, const AgentStatus& status) {
  const bool is_about_user = endpoint.is_verified || has(status, "alert");
  if (!is_about_user && !is_tls_error(status)) {
    return {LinkFailure::kBroken,
            describe(endpoint) + " closed the connection before sending anything",
            "check that an ivy-agent listens there"};
  }
  // On a redial, an agent that exits during the handshake closes the connection too, so this is not
  // taken for a rejected certificate.
  if (endpoint.redial && is_closed(status)) {
    return {LinkFailure::kBroken, describe(endpoint) + ": " + core_of(status.message), ""};
  }
  if (!is_about_user) {
    return {LinkFailure::kAuthentication,
            "no TLS with " + describe(endpoint) + ": " + core_of(status.message),
            "check that an ivy-agent listens there"};
  }
  // With TLS 1.3 the handshake is complete here before the agent has verified the user's
  // certificate, and gRPC reports a rejection as a closed connection. An agent that exits at this
  // moment looks the same.
  const std::string what =
      is_closed(status)
          ? " closed the connection after it received our certificate " + endpoint.self +
                ": it rejected it, or exited"
          : " rejected our certificate " + endpoint.self + ": " + core_of(status.message);
  return {LinkFailure::kAuthentication, describe(endpoint) + what,
          "its log says why: journalctl -u 'ivy-agent@*'; on the host with the CA, make a new "
          "certificate: "
          "ivy-agent cert --user NAME"};
}

// Returns the account that the agent serves. Over the Unix socket it is the account of the user who
// reads the message.
std::string user_of(const AgentEndpoint& endpoint) {
  constexpr std::string_view kRole = "user/";
  if (!endpoint.self.starts_with(kRole)) return "$USER";
  return endpoint.self.substr(kRole.size(), endpoint.self.find(' ') - kRole.size());
}

LinkDown not_connected(const AgentEndpoint& endpoint, const AgentStatus& status) {
  if (endpoint.timed_out) {
    const std::string where = endpoint.address.empty() ? endpoint.socket : address_of(endpoint);
    return {LinkFailure::kUnreachable, "connect to " + where + ": no response",
            firewall_fix(endpoint)};
  }
  if (is_refused(status)) {
    const std::string where = endpoint.address.empty() ? endpoint.socket : address_of(endpoint);
    return {LinkFailure::kRefused, "no agent listens at " + where + ": Connection refused",
            "start it on " + endpoint.host + ": systemctl start ivy-agent@" + user_of(endpoint)};
  }
  if (is_closed(status) || is_tls_error(status)) return not_secured(endpoint, status);
  return {LinkFailure::kUnreachable,
          "connect to " + address_of(endpoint) + ": " + core_of(status.message),
          firewall_fix(endpoint)};
}

LinkDown not_opened(const AgentEndpoint& endpoint, const AgentStatus& status) {
  const std::string text = describe(endpoint) + ": " + status.message;
  switch (status.code) {
    case kNotFound:
    case kAlreadyExists:
      return {LinkFailure::kNoSuchJob, text, ""};
    case kPermissionDenied:
    case kUnauthenticated:
      // On a redial the agent may be restarting: the link counts as broken, and the lease decides.
      return {endpoint.redial ? LinkFailure::kBroken : LinkFailure::kAuthentication,
              describe(endpoint) + " rejected the connection: " + status.message,
              "on the host with the CA, make a certificate: ivy-agent cert --user NAME"};
    case kUnimplemented:
      return {LinkFailure::kBootstrap,
              describe(endpoint) + " runs another version: " + status.message,
              "install this version there"};
    default:
      return {LinkFailure::kBootstrap, text, ""};
  }
}

}  // namespace

std::string describe(const AgentEndpoint& endpoint) {
  if (endpoint.address.empty()) return "this host's agent (" + endpoint.socket + ")";
  return "the agent on " + endpoint.host + " (" + address_of(endpoint) + ")";
}

LinkDown agent_failure(const AgentEndpoint& endpoint, const AgentStatus& status) {
  if (endpoint.rejection) {
    return {LinkFailure::kAuthentication,
            describe(endpoint) + " failed verification: " + endpoint.rejection->message,
            endpoint.rejection->fix};
  }
  if (endpoint.opened) {
    const std::string how = status.code == 0 ? "it closed the connection" : status.message;
    return {LinkFailure::kBroken, describe(endpoint) + ": " + how, ""};
  }
  if (never_connected(endpoint, status)) return not_connected(endpoint, status);
  if (endpoint.timed_out) {
    return {LinkFailure::kUnreachable, describe(endpoint) + " does not answer", ""};
  }
  if (status.code == kUnavailable && (is_closed(status) || is_tls_error(status))) {
    // The agent exited during the request, or closed the connection because of the user's
    // certificate.
    if (endpoint.connected) {
      return {LinkFailure::kBroken, describe(endpoint) + ": " + core_of(status.message), ""};
    }
    return not_secured(endpoint, status);
  }
  return not_opened(endpoint, status);
}

Error agent_error(const AgentEndpoint& endpoint, const AgentStatus& status) {
  const LinkDown down = agent_failure(endpoint, status);
  switch (down.failure) {
    case LinkFailure::kAuthentication:
      return {Code::kUnauthenticated, down.message.bytes(), down.fix};
    case LinkFailure::kUnreachable:
      return {endpoint.timed_out ? Code::kDeadlineExceeded : Code::kUnavailable,
              down.message.bytes(), down.fix};
    default:
      return {Code::kUnavailable, down.message.bytes(), down.fix};
  }
}

bool is_about_the_address(LinkFailure failure) {
  return failure == LinkFailure::kRefused || failure == LinkFailure::kUnreachable;
}

}  // namespace ivy
