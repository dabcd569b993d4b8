// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/net/authorization.h"

#include <grpcpp/security/auth_context.h>

#include <mutex>
#include <vector>

#include "agent/daemon/net/agent_credentials.h"
#include "agent/daemon/net/agent_log.h"

namespace ivy {
namespace {

struct Installed {
  std::mutex mutex;
  std::shared_ptr<const PeerPolicy> policy;
};

Installed& installed() {
  static Installed instance;
  return instance;
}

std::shared_ptr<const PeerPolicy> current_policy() {
  Installed& here = installed();
  const std::lock_guard lock(here.mutex);
  return here.policy;
}

Error refused(const std::string& address, Error error) {
  agent_log::refusal("refused a call from " + address + ": " + error.message +
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

void set_peer_policy(std::shared_ptr<const PeerPolicy> policy) {
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

std::string AgentPeer::certificate() const {
  if (local) return "unix socket";
  if (identity.serial.empty()) return "no certificate (loopback)";
  return "user/" + identity.name + " serial " + identity.serial;
}

Result<AgentPeer> peer_of(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const PeerPolicy> policy = current_policy();
  AgentPeer peer;
  const std::string name = context.peer();
  peer.address = plain_peer_name(name);
  if (policy == nullptr)
    return refused(peer.address, Error{Code::kPermissionDenied, "the agent is stopping", {}});
  // The acceptor has already checked the peer's credentials on the Unix socket: our own user or
  // root.
  if (name.starts_with("unix:")) {
    peer.local = true;
    return peer;
  }
  const std::string pem = shown_certificate(context);
  if (!pem.empty() && policy->credentials != nullptr) {
    auto identity = policy->credentials->judge(pem);
    if (!identity.ok()) return refused(peer.address, identity.error());
    if (policy->handshakes != nullptr) policy->handshakes->prove(peer.address);
    peer.identity = std::move(*identity);
    return peer;
  }
  if (pem.empty() && policy->plaintext_loopback &&
      (name.starts_with("ipv4:127.") || peer.address.starts_with("[::1]:"))) {
    peer.identity.name = policy->user;
    return peer;
  }
  return refused(peer.address, Error{Code::kPermissionDenied, "it presented no certificate", {}});
}

}  // namespace ivy
