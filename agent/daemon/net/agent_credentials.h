// SPDX-License-Identifier: Apache-2.0
// The agent's certificates: finds and checks them, hands them to gRPC, and reads them again when
// their files change. Also checks the certificates of clients.
//
// gRPC requests a client's certificate but does not check it: its own check of a chain names
// neither the certificate nor the reason. It is checked here when the handshake ends, and again at
// every call (authorization.h).
//
// Thread: load, reread and destruction on the loop's; the rest any. Lifetime: outlives the gRPC
// server.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
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
// (rejected if other users can read it).
struct CertificateFiles {
  std::string directory;
  std::string path(const char* name) const { return directory + "/" + name; }
};

// Returns the directories to search for certificates: only `requested` if given; else
// $CREDENTIALS_DIRECTORY, /etc/ivyrun/agent, ${XDG_CONFIG_HOME:-$HOME/.config}/ivyrun/agent.
std::vector<std::string> certificate_directories(const std::string& requested,
                                                 const Environment& environment);

// Returns the files of the first directory with a host.crt. NotFound lists the directories.
Result<CertificateFiles> find_certificates(const std::string& requested,
                                           const Environment& environment);

// Checks a client's certificate: it must be a user certificate of this name, signed by the CA,
// currently valid and not revoked.
Result<CertificateIdentity> check_client_certificate(std::string_view pem,
                                                     const TrustAnchor& anchor,
                                                     const std::string& user,
                                                     std::int64_t now_unix_s);

class AgentCredentials {
 public:
  // Reads and checks everything: our own certificate must be a host certificate, signed by the CA
  // and currently valid, must match its key, and must serve this user. FailedPrecondition, or
  // NotFound for a missing file, names the file at fault.
  static Result<std::unique_ptr<AgentCredentials>> load(const CertificateFiles& files,
                                                        const std::string& user,
                                                        HandshakeLimiter& handshakes);
  ~AgentCredentials();

  // For the server: client certificates are requested and checked.
  std::shared_ptr<grpc::ServerCredentials> server_credentials() const;

  // Reads the files again if one has changed or if `forced`; on the pool, since they may lie in a
  // home on a network. Invalid files are logged once and change nothing. New connections use the
  // new certificate within two seconds. A call while a read is in progress does nothing, unless it
  // is `forced`: then another read follows.
  void reread(BlockingPool& files, bool forced);
  bool is_reading() const { return is_reading_; }
  // Logs a warning if our certificate expires within 14 days: at the first call, then once a day.
  void log_expiry();

  // Logs a warning if our certificate names no user: this account could then pose as any user's
  // agent.
  void log_served_users() const;

  // Calls check_client_certificate() for our user with the files that were read last. Reuses an
  // accepted result for a second, unless the files change, because the first call follows the
  // handshake immediately.
  Result<CertificateIdentity> check_client(std::string_view pem) const;
  // "host/node1 serial 4f02 until 2026-11-24": for the log.
  std::string description() const;
  std::int64_t expires_at() const;  // When the certificate expires, in seconds since 1970.

 private:
  class ClientVerifier;
  struct Loaded;
  struct Stamp;
  AgentCredentials(CertificateFiles files, std::string user, HandshakeLimiter& handshakes);
  // last_revoked: used if the revocation list does not exist.
  static Result<Loaded> read_all(const CertificateFiles& files, const std::string& user,
                                 const std::string& last_revoked);
  std::shared_ptr<const TrustAnchor> anchor() const;
  struct Reading;
  Result<void> install(Loaded loaded);
  void use(const Reading& reading);
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
  // A file in memory with key and certificate, for gRPC's provider, which takes only paths. Its
  // descriptor number stays the same; the file is replaced as a whole.
  Descriptor published_;
  std::shared_ptr<grpc::ServerCredentials> server_credentials_;
  std::vector<Stamp> stamps_;
  bool is_reading_ = false;
  bool reads_again_ = false;
  // Expires with this object, because a read may still be in progress.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool keeps_last_revoked_ = false;  // The list's file is missing, and that was logged.
  std::int64_t expiry_logged_at_ = 0;
};

}  // namespace ivy
