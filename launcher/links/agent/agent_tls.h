// SPDX-License-Identifier: Apache-2.0
// Shared by all TLS connections of a launcher to agents: the user's key and certificate, and the
// verification of agents. Created once: OpenSSL 3.0 takes longer for it than for a handshake.
//
// Only TLS 1.3, key exchange on P-256, HTTP/2 as the inner protocol. check_agent() alone decides
// whether to trust an agent's certificate, in place of OpenSSL's own check, inside the handshake
// and before any byte of ivyrun is sent.
//
// Thread: any, a connection one at a time; the program must ignore SIGPIPE. Lifetime: shared by its
// connections.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>

#include "proto/trust/agent_user.h"

namespace ivy {

// The result of a handshake's checks of the agent.
struct AgentVerdict {
  bool believes = false;         // Its certificate was seen and is good.
  std::optional<Error> refusal;  // Why its certificate was not believed.
};

class AgentTls {
 public:
  struct Free {
    void operator()(SSL* connection) const { SSL_free(connection); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Connection = std::unique_ptr<SSL, Free>;

  // Fails where our key or certificate cannot be used.
  static Result<std::shared_ptr<AgentTls>> make(const AgentIdentity& us);
  ~AgentTls() = default;
  AgentTls(const AgentTls&) = delete;
  AgentTls& operator=(const AgentTls&) = delete;

  // A connection that has not shaken hands, over this connected socket, which stays the caller's.
  // asked: the host as the user typed it, which the certificate must name. verdict outlives it.
  Connection connect(int socket, const std::string& asked, AgentVerdict& verdict);

 private:
  explicit AgentTls(AgentIdentity us) : us_(std::move(us)) {}
  static int judge(X509_STORE_CTX* shown, void* self);

  const AgentIdentity us_;
  std::unique_ptr<SSL_CTX, Free> context_;
};

// The oldest error that OpenSSL has noted since, in its words; clears them.
std::string take_tls_error();

}  // namespace ivy
