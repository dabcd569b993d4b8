// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent/agent_failure.h"

#include <string_view>

namespace ivy {
namespace {

// gRPC's numbers of the answers that an agent gives (status.h has the others).
constexpr int kNotFound = static_cast<int>(Code::kNotFound);
constexpr int kAlreadyExists = static_cast<int>(Code::kAlreadyExists);
constexpr int kPermissionDenied = static_cast<int>(Code::kPermissionDenied);
constexpr int kUnauthenticated = static_cast<int>(Code::kUnauthenticated);
constexpr int kUnavailable = static_cast<int>(Code::kUnavailable);
constexpr int kUnimplemented = 12;

bool has(const AgentStatus& status, std::string_view text) {
  return status.message.find(text) != std::string::npos;
}

// gRPC never got through; its text ends with the system's own words. The texts are those of the
// version that we link statically.
bool never_connected(const AgentPlace& place, const AgentStatus& status) {
  return !place.connected && (place.timed_out || has(status, "failed to connect to all addresses"));
}

bool is_refused(const AgentStatus& status) {
  return has(status, "Connection refused") || has(status, "No such file or directory");
}

// TLS itself says that it cannot be.
bool is_tls_error(const AgentStatus& status) {
  return has(status, "SSL_ERROR") || has(status, "Handshake failed") || has(status, "alert");
}

// The other end hung up.
bool is_closed(const AgentStatus& status) {
  return has(status, "Socket closed") || has(status, "onnection reset") ||
         has(status, "roken pipe") || has(status, "Endpoint read failed") ||
         has(status, "andshake read failed") || has(status, "GOAWAY") ||
         has(status, "ransport closed");
}

// Removes the prefix that gRPC puts before the reason: "failed to connect to all addresses; last
// error: UNKNOWN: ".
std::string core_of(const std::string& message) {
  constexpr std::string_view kLast = "last error: ";
  const std::size_t at = message.rfind(kLast);
  return at == std::string::npos ? message : message.substr(at + kLast.size());
}

std::string address_of(const AgentPlace& place) {
  return place.address + " port " + std::to_string(place.port);
}

std::string firewall_fix(const AgentPlace& place) {
  return "is " + place.host + " switched on, and does a firewall let " + address_of(place) +
         " through?";
}

LinkDown not_secured(const AgentPlace& place, const AgentStatus& status) {
  const bool about_us = place.believed || has(status, "alert");
  if (!about_us && !is_tls_error(status)) {
    return {LinkFailure::kBroken,
            describe(place) + " closed the connection before sending anything",
            "check that an ivy-agent listens there"};
  }
  // An agent that ends during a handshake hangs up as well: a redial tells the two apart.
  if (place.redial && is_closed(status)) {
    return {LinkFailure::kBroken, describe(place) + ": " + core_of(status.message), ""};
  }
  if (!about_us) {
    return {LinkFailure::kAuthentication,
            "no TLS with " + describe(place) + ": " + core_of(status.message),
            "check that an ivy-agent listens there"};
  }
  // TLS 1.3 lets us believe that we are in before the other end has looked at our certificate, and
  // gRPC says no by hanging up: an agent that ends in that moment looks the same.
  const std::string what =
      is_closed(status)
          ? " closed the connection after it received our certificate " + place.self +
                ": it rejected it, or exited"
          : " rejected our certificate " + place.self + ": " + core_of(status.message);
  return {LinkFailure::kAuthentication, describe(place) + what,
          "its log says why: journalctl -u 'ivy-agent@*'; on the host with the CA, make a new "
          "certificate: "
          "ivy-agent cert --user NAME"};
}

// The account that the agent serves. Over the Unix socket that is whoever reads the message.
std::string user_of(const AgentPlace& place) {
  constexpr std::string_view kRole = "user/";
  if (!place.self.starts_with(kRole)) return "$USER";
  return place.self.substr(kRole.size(), place.self.find(' ') - kRole.size());
}

LinkDown not_connected(const AgentPlace& place, const AgentStatus& status) {
  if (place.timed_out) {
    const std::string where = place.address.empty() ? place.socket : address_of(place);
    return {LinkFailure::kUnreachable, "connect to " + where + ": no response",
            firewall_fix(place)};
  }
  if (is_refused(status)) {
    const std::string where = place.address.empty() ? place.socket : address_of(place);
    return {LinkFailure::kRefused, "no agent listens at " + where + ": Connection refused",
            "start it on " + place.host + ": systemctl start ivy-agent@" + user_of(place)};
  }
  if (is_closed(status) || is_tls_error(status)) return not_secured(place, status);
  return {LinkFailure::kUnreachable,
          "connect to " + address_of(place) + ": " + core_of(status.message), firewall_fix(place)};
}

LinkDown not_opened(const AgentPlace& place, const AgentStatus& status) {
  const std::string said = describe(place) + ": " + status.message;
  switch (status.code) {
    case kNotFound:
    case kAlreadyExists:
      return {LinkFailure::kNoSuchJob, said, ""};
    case kPermissionDenied:
    case kUnauthenticated:
      // On a redial this may be an agent being restarted: report "broken" and let the lease decide.
      return {place.redial ? LinkFailure::kBroken : LinkFailure::kAuthentication,
              describe(place) + " rejected the connection: " + status.message,
              "on the host with the CA, make a certificate: ivy-agent cert --user NAME"};
    case kUnimplemented:
      return {LinkFailure::kBootstrap, describe(place) + " runs another version: " + status.message,
              "install this version there"};
    default:
      return {LinkFailure::kBootstrap, said, ""};
  }
}

}  // namespace

std::string describe(const AgentPlace& place) {
  if (place.address.empty()) return "this host's agent (" + place.socket + ")";
  return "the agent on " + place.host + " (" + address_of(place) + ")";
}

LinkDown agent_failure(const AgentPlace& place, const AgentStatus& status) {
  if (place.refusal) {
    return {LinkFailure::kAuthentication,
            describe(place) + " failed verification: " + place.refusal->message,
            place.refusal->fix};
  }
  if (place.opened) {
    const std::string how = status.code == 0 ? "it closed the connection" : status.message;
    return {LinkFailure::kBroken, describe(place) + ": " + how, ""};
  }
  if (never_connected(place, status)) return not_connected(place, status);
  if (place.timed_out) {
    return {LinkFailure::kUnreachable, describe(place) + " does not answer", ""};
  }
  if (status.code == kUnavailable && (is_closed(status) || is_tls_error(status))) {
    // The agent went away under the question, or hung up on our certificate.
    if (place.connected) {
      return {LinkFailure::kBroken, describe(place) + ": " + core_of(status.message), ""};
    }
    return not_secured(place, status);
  }
  return not_opened(place, status);
}

Error agent_error(const AgentPlace& place, const AgentStatus& status) {
  const LinkDown down = agent_failure(place, status);
  switch (down.failure) {
    case LinkFailure::kAuthentication:
      return {Code::kUnauthenticated, down.message.bytes(), down.fix};
    case LinkFailure::kUnreachable:
      return {place.timed_out ? Code::kDeadlineExceeded : Code::kUnavailable, down.message.bytes(),
              down.fix};
    default:
      return {Code::kUnavailable, down.message.bytes(), down.fix};
  }
}

bool is_about_the_address(LinkFailure failure) {
  return failure == LinkFailure::kRefused || failure == LinkFailure::kUnreachable;
}

}  // namespace ivy
