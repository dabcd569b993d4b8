// SPDX-License-Identifier: Apache-2.0
// Reads the identity of an agent or a launcher from its certificate, and verifies it.
//
//   ivy://host/NAME    a host certificate, which serves but never launches; its addresses are
//                      also names
//   ivy://user/NAME    a user certificate, which launches but never serves
//   ivy://serves/NAME  next to ivy://host/...: this agent may serve only that user
//
// A certificate has exactly one role, as a URI among its subject alternative names. The extended
// key usage (serverAuth or clientAuth) must agree with it. Keys are P-256, signatures
// ECDSA-SHA-256, and the CA signs leaves directly. RFC 5280.
//
// Links OpenSSL's libcrypto (never libssl); the program chooses the static or the shared one.
// Thread: any.
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

// Limit of a peer's chain and of an anchor; eight certificates need far less than 64 KiB.
inline constexpr std::size_t kMaxCertificateBytes = 64 * 1024;
// Enough for a revocation list with some 20,000 entries.
inline constexpr std::size_t kMaxRevocationBytes = 1024 * 1024;

struct CertificateIdentity {
  CertificateRole role = CertificateRole::kUser;
  std::string name;                    // NAME in the role's URI.
  std::string serves;                  // NAME in ivy://serves/NAME; empty means every user.
  std::vector<std::string> dns_names;  // In lower case, because DNS ignores case.
  std::vector<std::string> addresses;  // Numeric, as formatted by inet_ntop().
  std::string serial;                  // In lower-case hexadecimal digits.
  std::int64_t not_before = 0;         // In seconds since 1970.
  std::int64_t not_after = 0;          // In seconds since 1970.
};

struct ParsedAnchor;  // OpenSSL's form of a TrustAnchor; immutable.

struct TrustAnchor {
  std::string ca_pem;   // One or more CA certificates (several while one replaces another).
  std::string crl_pem;  // Concatenated revocation lists; empty if there are none.
  // ca_pem and crl_pem, parsed by prepare_anchor(). If null, each check parses them, which takes a
  // third of its time.
  std::shared_ptr<const ParsedAnchor> parsed = nullptr;
};

// Parses an anchor that is used to check many certificates; call it again when a text changes.
// Fails with the errors that verify_certificate() would report for the anchor.
Result<void> prepare_anchor(TrustAnchor& anchor);

// Checks that the name may be that of a host or user in a certificate, so that it is safe in URIs,
// paths and tables. Names of hosts consist of letters, digits and . _ : - and have up to 253
// characters; names of users are account names of up to 32.
Result<void> check_certificate_name(CertificateRole role, std::string_view name);

// Reads the first certificate of the text without verifying it, for messages and for `ivy-agent`'s
// verbs. Fails with InvalidArgument if it is not an ivyrun certificate. All texts here must start
// with PEM blocks; text after the last block is ignored.
Result<CertificateIdentity> read_certificate(std::string_view pem);

// Returns the identity of a peer. The error has one line that names the certificate:
//   Unauthenticated     not signed by this CA; not yet valid, expired (with the date); damaged
//   PermissionDenied    revoked; of the wrong role ("is a host's certificate: it cannot launch")
//   FailedPrecondition  the anchor is invalid, not the peer: it has no CA, a revocation list that
//                       the CA did not sign, or revocation lists only of other CAs
// This host's clock may be up to a day behind the CA's, because certificates are valid from a day
// before they are made.
Result<CertificateIdentity> verify_certificate(std::string_view chain_pem,
                                               const TrustAnchor& anchor, CertificateRole wanted,
                                               std::int64_t now_unix_s);

// Returns a numeric address as used in certificates and messages: without brackets and zone, IPv6
// in its short form, and an IPv4-mapped address as IPv4. Returns an empty text if it is not a
// numeric address.
std::string canonical_address(std::string_view text);

// Checks that `host_name` (a DNS name or a numeric address, as the user typed it) is among the
// names of this certificate. DNS names are compared as a whole (there are no wildcards), ignoring
// case. If not, fails with PermissionDenied and lists the certificate's names.
Result<void> check_host_name(const CertificateIdentity& identity, std::string_view host_name);

// Formats the day in UTC: "2026-11-24".
std::string certificate_date(std::int64_t unix_s);

// Returns "expires in 3 days (2026-11-24)" or "expired 2 hours ago (...)", or an empty text while
// more than `warn_days` are left.
std::string expiry_warning(std::int64_t not_after, std::int64_t now_unix_s, int warn_days = 14);

}  // namespace ivy
