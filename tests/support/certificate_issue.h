// SPDX-License-Identifier: Apache-2.0
// Creates keys, certificates and revocation lists as texts, like a certificate authority. Uses no
// files and no clock; the only other input is random numbers.
//
// P-256, ECDSA-SHA-256, serials of 128 random bits, RFC 5280. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct KeyAndCertificate {
  std::string key_pem;
  std::string certificate_pem;
};

// The contents of a certificate. Names must have passed check_certificate_name(), because they are
// written unchanged.
struct CertificateRequest {
  std::string common_name;  // For people; left out if longer than the allowed 64 bytes.
  std::vector<std::string> uris;
  std::vector<std::string> dns_names;
  std::vector<std::string> addresses;        // Numeric, without a port.
  std::vector<std::string> extended_usages;  // Such as "serverAuth" and "clientAuth".
  std::int64_t not_before = 0;               // Both times are seconds since 1970.
  std::int64_t not_after = 0;
};

struct RevokedSerial {
  std::string serial;  // Lower-case hexadecimal digits, as OpenSSL prints them.
  std::int64_t revoked_at = 0;
};

// A CA: a key and a certificate signed by it. It signs leaves only.
KeyAndCertificate make_authority(const std::string& name, std::int64_t not_before,
                                 std::int64_t not_after);

// Returns a new key and its certificate. Returns FailedPrecondition if key and certificate of the
// authority do not belong together or cannot be read.
Result<KeyAndCertificate> issue_certificate(const KeyAndCertificate& authority,
                                            const CertificateRequest& request);

struct RevocationListDates {
  std::int64_t last_update = 0;  // Both times are seconds since 1970.
  std::int64_t next_update = 0;
  std::int64_t number = 0;  // Must be higher in each following list.
};

// Returns the whole list, signed by the CA.
Result<std::string> sign_revocation_list(const KeyAndCertificate& authority,
                                         const std::vector<RevokedSerial>& revoked,
                                         const RevocationListDates& dates);

}  // namespace ivy
