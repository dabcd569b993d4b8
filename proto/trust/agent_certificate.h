// SPDX-License-Identifier: Apache-2.0
// Reads the identity of an agent or a launcher from its certificate, and verifies it.
//
//   ivy://host/NAME    a host certificate: serves, never launches; its addresses are names too
//   ivy://user/NAME    a user certificate: launches, never serves
//   ivy://serves/NAME  beside ivy://host/...: this agent may serve that user only
//
// Exactly one role per certificate, as a URI among its subject alternative names; the extended key
// usage says the same (serverAuth or clientAuth) and must agree. Keys are P-256, signatures
// ECDSA-SHA-256, the CA signs leaves directly. RFC 5280.
//
// Links OpenSSL's libcrypto (never libssl); its user chooses the static or the shared one. Thread:
// any. Everything here is a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

enum class CertificateRole { kHost, kUser };

// Bounds what a peer shows and what an anchor holds: eight certificates need far less than 64 KiB.
inline constexpr std::size_t kMaxCertificateBytes = 64 * 1024;
// A revocation list with some 20,000 entries.
inline constexpr std::size_t kMaxRevocationBytes = 1024 * 1024;

struct CertificateIdentity {
  CertificateRole role = CertificateRole::kUser;
  std::string name;                    // NAME in the role's URI.
  std::string serves;                  // NAME in ivy://serves/NAME; empty: anybody.
  std::vector<std::string> dns_names;  // In lower case, as DNS compares them.
  std::vector<std::string> addresses;  // Numeric, as inet_ntop() writes them.
  std::string serial;                  // In hexadecimal digits of lower case.
  std::int64_t not_before = 0;         // Both times are seconds since 1970.
  std::int64_t not_after = 0;
};

struct ParsedAnchor;  // OpenSSL's form of a TrustAnchor; immutable.

struct TrustAnchor {
  std::string ca_pem;   // One CA certificate or several (while one replaces the other).
  std::string crl_pem;  // Revocation lists, concatenated; empty: nothing is revoked.
  // These two texts parsed by prepare_anchor(). Null: each check parses them, which takes a third
  // of its time.
  std::shared_ptr<const ParsedAnchor> parsed = nullptr;
};

// Parses an anchor that checks many certificates; call it again when a text changes. The errors are
// those that verify_certificate() would find in the anchor.
Result<void> prepare_anchor(TrustAnchor& anchor);

// Checks that this may be the name of a host or of a user in a certificate, so that it breaks no
// URI, path or table. Hosts: letters, digits and . _ : - up to 253 of them; users: an account's
// name, up to 32.
Result<void> check_certificate_name(CertificateRole role, std::string_view name);

// Reads the first certificate of the text without verifying it, for messages and for `ivy-agent`'s
// verbs. Fails with InvalidArgument if it is not one of ours. PEM blocks come first in every text
// here; what follows the last one is ignored.
Result<CertificateIdentity> read_certificate(std::string_view pem);

// The identity of a peer, or why it is refused, in one line that names the certificate:
//   Unauthenticated     not signed by this CA; not yet valid, expired (with the date); damaged
//   PermissionDenied    revoked; of the wrong role ("is a host's certificate: it cannot launch")
//   FailedPrecondition  the anchor is at fault, not the peer: no CA in it, a revocation list that
//                       the CA did not sign, none of this CA beside those of others
// A peer's clock may be a day behind: certificates are made a day old.
Result<CertificateIdentity> verify_certificate(std::string_view chain_pem,
                                               const TrustAnchor& anchor, CertificateRole wanted,
                                               std::int64_t now_unix_s);

// A numeric address as certificates and messages have it: without brackets and zone, IPv6 in its
// short form, IPv4 also where it was mapped into IPv6. Empty when the text is no numeric address.
std::string canonical_address(std::string_view text);

// Checks that the host that was asked for (a DNS name or a numeric address, as the user typed it)
// is among the names of this certificate. DNS names are compared whole (there are no wildcards),
// without case. PermissionDenied lists the names that it has.
Result<void> check_host_name(const CertificateIdentity& identity, std::string_view asked);

// The day in UTC, such as "2026-11-24".
std::string certificate_date(std::int64_t unix_s);

// "expires in 3 days (2026-11-24)" or "expired 2 hours ago (...)"; empty while more than warn_days
// are left.
std::string expiry_warning(std::int64_t not_after, std::int64_t now_unix_s, int warn_days = 14);

}  // namespace ivy
