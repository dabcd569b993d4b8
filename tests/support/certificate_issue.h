// SPDX-License-Identifier: Apache-2.0
// Keys, certificates and revocation lists as texts: what a certificate authority computes. Knows no
// file and no clock; only the numbers that it draws are random.
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

// The contents of a certificate. Names must have passed check_certificate_name: they are written as
// they are.
struct CertificateRequest {
  std::string common_name;  // For people; left out when it is longer than the 64 bytes it may have.
  std::vector<std::string> uris;
  std::vector<std::string> dns_names;
  std::vector<std::string> addresses;        // In numbers, without a port.
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

// A new key and its certificate. FailedPrecondition when key and certificate of the authority do
// not belong together or cannot be read.
Result<KeyAndCertificate> issue_certificate(const KeyAndCertificate& authority,
                                            const CertificateRequest& request);

struct RevocationListDates {
  std::int64_t last_update = 0;  // Both times are seconds since 1970.
  std::int64_t next_update = 0;
  std::int64_t number = 0;  // Must grow from list to list.
};

// The whole list, signed by the CA.
Result<std::string> sign_revocation_list(const KeyAndCertificate& authority,
                                         const std::vector<RevokedSerial>& revoked,
                                         const RevocationListDates& dates);

}  // namespace ivy
