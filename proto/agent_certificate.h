// Who an agent or a launcher is, by its certificate, and whether that is to be believed.
//
//   ivy://host/NAME   a host certificate: serves, never launches; DNS and IP names are its
//   addresses ivy://user/NAME   a user certificate: launches, never serves ivy://serves/NAME beside
//   ivy://host/...: this agent may serve that user only
//
// Exactly one role per certificate, as a URI among its subject alternative names; the extended key
// usage says the same (serverAuth or clientAuth) and must agree. Keys are P-256, signatures
// ECDSA-SHA-256, the CA signs leaves directly. RFC 5280.
//
// Links OpenSSL's libcrypto (never libssl); whoever uses it chooses the static or the shared one.
// Thread: any. Everything here is a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/status.h"

namespace ivy {

enum class CertificateRole { kHost, kUser };

struct CertificateIdentity {
  CertificateRole role = CertificateRole::kUser;
  std::string name;                    // Of the URI.
  std::string serves;                  // Of ivy://serves/NAME; empty: anybody.
  std::vector<std::string> dns_names;  // Lower case.
  std::vector<std::string> addresses;  // Numeric, canonical.
  std::string serial;                  // Hexadecimal, lower case.
  std::int64_t not_before = 0;         // Seconds since 1970.
  std::int64_t not_after = 0;
};

struct TrustAnchor {
  std::string ca_pem;   // One CA certificate or several (while one replaces the other).
  std::string crl_pem;  // Revocation lists, concatenated; may be empty.
};

// The first certificate of the text, believed without proof: for messages and for `ivy-agent`'s
// verbs. InvalidArgument when it is none of ours.
Result<CertificateIdentity> read_certificate(std::string_view pem);

// The identity of a peer, or why it is refused, in one line that names the certificate:
//   Unauthenticated     not signed by this CA; not yet valid, expired (with the date); damaged
//   PermissionDenied    revoked; of the wrong role ("is a host's certificate: it cannot launch")
// A peer's clock may be a day behind: certificates are made a day old.
Result<CertificateIdentity> verify_certificate(std::string_view chain_pem,
                                               const TrustAnchor& anchor, CertificateRole wanted,
                                               std::int64_t now_unix_s);

// Is the host that was asked for (a DNS name or a numeric address, as the user typed it) among the
// names of this certificate? PermissionDenied lists the names that it has.
Result<void> check_host_name(const CertificateIdentity& identity, std::string_view asked);

// "expires in 3 days (2026-11-24)" or "expired 2 hours ago (...)"; empty while more than warn_days
// are left.
std::string expiry_warning(std::int64_t not_after, std::int64_t now_unix_s, int warn_days = 14);

}  // namespace ivy
