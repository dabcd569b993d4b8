// SPDX-License-Identifier: Apache-2.0
// The TLS context that all connections of a launcher to agents share: the user's key and
// certificate, and the verification of agents. It is created once, because that takes OpenSSL 3.0
// longer than a handshake.
//
// Only TLS 1.3, with key exchange on P-256 and HTTP/2 as the inner protocol. check_agent() alone
// decides whether an agent's certificate is trusted, in place of OpenSSL's own check. It runs
// inside the handshake, before any byte of ivyrun is sent.
//
// Thread: any; a connection must not be used by two at a time. The program must ignore SIGPIPE.
// Lifetime: shared by its connections.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>

#include "proto/trust/agent_user.h"

namespace ivy {

// The result of verifying an agent.
struct AgentVerdict {
  bool is_verified = false;        // Its certificate was verified.
  std::optional<Error> rejection;  // Why its certificate was rejected.
};

class AgentTls {
 public:
  struct Free {
    void operator()(SSL* connection) const { SSL_free(connection); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Connection = std::unique_ptr<SSL, Free>;

  // Fails if the user's key or certificate cannot be used.
  static Result<std::shared_ptr<AgentTls>> make(const AgentIdentity& own_identity);
  ~AgentTls() = default;
  AgentTls(const AgentTls&) = delete;
  AgentTls& operator=(const AgentTls&) = delete;

  // Makes a connection over this connected socket, which remains the caller's; the handshake is
  // still to be done. asked: the host as the user typed it, which the certificate must name.
  // verdict receives the result, and outlives the connection.
  Connection connect(int socket, const std::string& host_name, AgentVerdict& verdict);

 private:
  explicit AgentTls(AgentIdentity own_identity) : own_identity_(std::move(own_identity)) {}
  static int judge(X509_STORE_CTX* context, void* self);

  const AgentIdentity own_identity_;
  std::unique_ptr<SSL_CTX, Free> context_;
};

// Returns the text of the oldest error in OpenSSL's queue, and clears the queue.
std::string take_tls_error();

}  // namespace ivy
