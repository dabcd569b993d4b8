// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/authorization.h"

#include <grpcpp/security/auth_context.h>

#include <mutex>
#include <vector>

#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/agent_log.h"
#include "agent/daemon/net/handshake_limiter.h"

namespace ivy {
namespace {

struct Installed {
  std::mutex mutex;
  std::shared_ptr<const AuthorizationPolicy> policy;
};

Installed& installed() {
  static Installed instance;
  return instance;
}

std::shared_ptr<const AuthorizationPolicy> current_policy() {
  Installed& here = installed();
  const std::lock_guard lock(here.mutex);
  return here.policy;
}

Error rejected(const std::string& address, Error error) {
  agent_log::rejection("rejected a call from " + address + ": " + error.message +
                       (error.fix.empty() ? "" : "; " + error.fix));
  error.code = Code::kPermissionDenied;
  return error;
}

// The certificate that TLS reports for the peer; empty for a connection without TLS.
std::string shown_certificate(const grpc::CallbackServerContext& context) {
  const auto authentication = context.auth_context();
  if (!authentication) return {};
  const std::vector<grpc::string_ref> found = authentication->FindPropertyValues("x509_pem_cert");
  return found.empty() ? std::string() : std::string(found.front().data(), found.front().size());
}

}  // namespace

void set_authorization_policy(std::shared_ptr<const AuthorizationPolicy> policy) {
  Installed& here = installed();
  const std::lock_guard lock(here.mutex);
  here.policy = std::move(policy);
}

std::string plain_peer_name(const std::string& grpc_peer) {
  const std::size_t colon = grpc_peer.find(':');
  if (grpc_peer.starts_with("unix")) return "unix socket";
  if (colon == std::string::npos) return grpc_peer;
  std::string result;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (std::size_t i = colon + 1; i < grpc_peer.size(); ++i) {
    if (grpc_peer[i] == '%' && i + 2 < grpc_peer.size() && digit(grpc_peer[i + 1]) >= 0 &&
        digit(grpc_peer[i + 2]) >= 0) {
      result += static_cast<char>(digit(grpc_peer[i + 1]) * 16 + digit(grpc_peer[i + 2]));
      i += 2;
    } else {
      result += grpc_peer[i];
    }
  }
  return result;
}

std::string Caller::certificate() const {
  if (local) return "unix socket";
  if (identity.serial.empty()) return "no certificate (loopback)";
  return "user/" + identity.name + " serial " + identity.serial;
}

Result<Caller> authorize_caller(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const AuthorizationPolicy> policy = current_policy();
  Caller caller;
  const std::string name = context.peer();
  caller.address = plain_peer_name(name);
  if (policy == nullptr)
    return rejected(caller.address, Error{Code::kPermissionDenied, "the agent is stopping", {}});
  // On the Unix socket the acceptor has already checked the peer's credentials: our own user or
  // root.
  if (name.starts_with("unix:")) {
    caller.local = true;
    return caller;
  }
  const std::string pem = shown_certificate(context);
  if (!pem.empty() && policy->credentials != nullptr) {
    auto identity = policy->credentials->check_client(pem);
    if (!identity.ok()) return rejected(caller.address, identity.error());
    if (policy->handshakes != nullptr) policy->handshakes->mark_proved(caller.address);
    caller.identity = std::move(*identity);
    return caller;
  }
  if (pem.empty() && policy->plaintext_loopback &&
      (name.starts_with("ipv4:127.") || caller.address.starts_with("[::1]:"))) {
    caller.identity.name = policy->user;
    return caller;
  }
  return rejected(caller.address,
                  Error{Code::kPermissionDenied, "it presented no certificate", {}});
}

}  // namespace ivy
