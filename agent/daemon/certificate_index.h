// issued.txt of a certificate authority: one line for each certificate that it has signed, oldest
// first, fields apart by tabs. People read it, `ivy-agent certs` prints it, revocation lists are
// made from it.
//
//   serial     role  name   not after   status      directory
//   4f02a1...  host  node7  1795478400  valid       /home/alice/node7
//   77b0c4...  user  alice  1771718400  1764000000  /home/alice/.config/ivyrun
//
// The status is "valid" or the second of the revocation; whether a certificate has expired is a
// matter of today and not written down. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {

// Some ten years of a thousand hosts; read whole at every verb.
inline constexpr std::size_t kMaxIssued = 100'000;

struct IssuedCertificate {
  std::string serial;
  CertificateRole role = CertificateRole::kUser;
  std::string name;
  std::int64_t not_after = 0;   // Both times are seconds since 1970.
  std::int64_t revoked_at = 0;  // 0 while it is valid.
  std::string directory;        // Where its files were written, absolute.
  bool operator==(const IssuedCertificate&) const = default;
};

std::string index_text(const std::vector<IssuedCertificate>& issued);

// FailedPrecondition names the line: what is not understood is not guessed, since a lost line could
// bring a revoked certificate back.
Result<std::vector<IssuedCertificate>> parse_index(std::string_view text, const std::string& path);

// The last certificate made for that name, or null.
const IssuedCertificate* newest_of(const std::vector<IssuedCertificate>& issued,
                                   CertificateRole role, std::string_view name);

// The table of `ivy-agent certs`: every certificate that has not expired, and the newest of each
// name even if it has; then a warning for each that is in use and about to expire.
std::string index_table(const std::vector<IssuedCertificate>& issued, std::int64_t now_unix_s);

}  // namespace ivy
