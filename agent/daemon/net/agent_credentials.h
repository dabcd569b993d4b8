// SPDX-License-Identifier: Apache-2.0
// The agent's certificates: found, checked, handed to gRPC, and read again when their files change.
//
// gRPC asks clients for a certificate but leaves judging it to us: its own check of a chain names
// neither the certificate nor the reason. A certificate is checked when its connection's
// handshake ends (here) and again at every call (peer_of).
//
// Thread: load, reread and destruction on the loop's; the rest any. Lifetime: outlives the gRPC
// server.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/daemon/net/handshake_limiter.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {

// ca.crt, ca.crl (may be missing; once read, the last list stays in use), host.crt and host.key
// (refused when others may read it).
struct CertificateFiles {
  std::string directory;
  std::string path(const char* name) const { return directory + "/" + name; }
};

// Returns the directories to search for certificates: only `asked` if given; else
// $CREDENTIALS_DIRECTORY, /etc/ivyrun/agent, ${XDG_CONFIG_HOME:-$HOME/.config}/ivyrun/agent.
std::vector<std::string> certificate_places(const std::string& asked,
                                            const Environment& environment);

// Returns the first place with a host.crt. NotFound lists the places.
Result<CertificateFiles> find_certificates(const std::string& asked,
                                           const Environment& environment);

// Checks a client's certificate: it must be a user's, of this name, signed, in time, not revoked.
Result<CertificateIdentity> judge_client(std::string_view pem, const TrustAnchor& anchor,
                                         const std::string& user, std::int64_t now_unix_s);

class AgentCredentials {
 public:
  // Reads and checks everything: our own certificate must be a host's, signed by the CA, in time,
  // fit its key, and serve this user. FailedPrecondition names the file at fault.
  static Result<std::unique_ptr<AgentCredentials>> load(const CertificateFiles& files,
                                                        const std::string& user,
                                                        HandshakeLimiter& handshakes);
  ~AgentCredentials();

  // For the acceptors; client certificates are demanded and judged.
  std::shared_ptr<grpc::ServerCredentials> server_credentials() const;

  // Reads the files again when one has changed since, or when `forced`, on the pool: they may lie
  // in a home on a network. Files that are not valid are logged once and change nothing. New
  // connections use the new certificate within two seconds. `done` is called on the loop; at once
  // when the last reading has not ended yet, which then reads once more.
  void reread(
      BlockingPool& files, bool forced, std::function<void()> done = [] {});
  // Logs a warning when our certificate ends within 14 days: at the first call, then once a day.
  void say_expiry();

  // Logs a warning when our certificate names no user: this account could then pose as any user's
  // agent.
  void say_whom_it_serves() const;

  // judge_client() for our user, by the files that were read last. An answer is reused for a
  // second, unless the files change: the end of a handshake and the first call come together.
  Result<CertificateIdentity> judge(std::string_view pem) const;
  // "host/node1 serial 4f02 until 2026-11-24": for the log.
  std::string description() const;
  std::int64_t expires_at() const;  // When the certificate ends, in seconds since 1970.

 private:
  class ClientVerifier;
  struct Loaded;
  struct Stamp;
  AgentCredentials(CertificateFiles files, std::string user, HandshakeLimiter& handshakes);
  // last_revoked: used if the revocation list does not exist (any longer).
  static Result<Loaded> read_all(const CertificateFiles& files, const std::string& user,
                                 const std::string& last_revoked);
  std::shared_ptr<const TrustAnchor> anchor() const;
  struct Reading;
  Result<void> take_over(Loaded loaded);
  void take(const Reading& reading);
  static std::vector<Stamp> stamps_of(const CertificateFiles& files);

  CertificateFiles files_;
  std::string user_;
  HandshakeLimiter& handshakes_;
  // The last certificate that was accepted.
  struct AcceptedCertificate {
    std::string pem;
    CertificateIdentity identity;
    std::int64_t at_unix_s = 0;
  };

  mutable std::mutex mutex_;  // Guards the three members that a reload changes.
  std::shared_ptr<const TrustAnchor> anchor_;
  CertificateIdentity own_;
  // Peers accepted under anchor_; dropped with it.
  mutable std::shared_ptr<const AcceptedCertificate> accepted_;
  // A file in memory with key and certificate, for gRPC's provider, which knows only paths. Its
  // descriptor number stays; the file behind it is exchanged as a whole.
  Descriptor published_;
  std::shared_ptr<grpc::ServerCredentials> server_credentials_;
  std::vector<Stamp> stamps_;
  bool is_reading_ = false;
  bool reads_again_ = false;
  // Expired with this object: a reading may still be under way.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool keeps_last_revoked_ = false;  // The list's file is missing, and that was logged.
  std::int64_t expiry_said_at_ = 0;
};

// The facts that peer_of() needs: they are global because a call brings only its context. One per
// process.
struct PeerPolicy {
  std::string user;
  const AgentCredentials* credentials = nullptr;  // Null: TLS is not served.
  HandshakeLimiter* handshakes = nullptr;
  bool plaintext_loopback = false;
};
// Set before the server starts, cleared (with null) after it has ended.
void set_peer_policy(std::shared_ptr<const PeerPolicy> policy);

// gRPC's "ipv6:%5B::1%5D:99" as we write it: "[::1]:99". Pure.
std::string plain_peer_name(const std::string& grpc_peer);

}  // namespace ivy
