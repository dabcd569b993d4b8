// SPDX-License-Identifier: Apache-2.0
// A CA with valid and invalid certificates of every kind, as texts and as files in a temporary
// directory.
//
//   const TestAuthority authority;
//   const TestDirectory directory;
//   write_host_files(directory, "agent", authority, authority.host("node1", {"node1"}));
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "proto/trust/agent_certificate.h"
#include "tests/support/certificate_issue.h"

namespace ivy::test {

inline constexpr std::int64_t kTestDay = 24 * 60 * 60;

// Differences from a valid certificate.
struct TestRequest {
  std::vector<std::string> uris;
  std::vector<std::string> dns_names = {};
  std::vector<std::string> addresses = {};
  std::vector<std::string> usages = {};
  std::int64_t from = -kTestDay;  // Seconds after the CA's "now".
  std::int64_t until = 30 * kTestDay;
};

// A CA in memory. Aborts if libcrypto fails.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test CA",
                         std::int64_t now_unix_s = std::time(nullptr));

  KeyAndCertificate issue(const TestRequest& request) const;
  KeyAndCertificate host(const std::string& name, const std::vector<std::string>& dns_names = {},
                         const std::vector<std::string>& addresses = {}) const;
  KeyAndCertificate user(const std::string& name) const;
  KeyAndCertificate expired_user(const std::string& name) const;
  KeyAndCertificate expired_host(const std::string& name) const;

  // Returns a list that revokes these certificates; it may be empty.
  std::string revocation_list(const std::vector<KeyAndCertificate>& revoked) const;

  std::int64_t now() const { return now_; }
  const KeyAndCertificate& texts() const { return texts_; }
  TrustAnchor anchor(const std::vector<KeyAndCertificate>& revoked) const;
  TrustAnchor anchor() const;  // Without a revocation list.

 private:
  std::int64_t now_;
  KeyAndCertificate texts_;
};

// A temporary directory, removed with its contents.
class TestDirectory {
 public:
  TestDirectory();
  ~TestDirectory();
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file (mode 0600 if the name ends with .key) and returns its path. Creates its parents.
  std::string write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;

 private:
  std::string path_;
};

// Writes ca.crt, ca.crl, host.crt and host.key like `ivy-agent cert HOST`. Returns the directory.
std::string write_host_files(const TestDirectory& directory, const std::string& name,
                             const TestAuthority& authority, const KeyAndCertificate& host,
                             const std::vector<KeyAndCertificate>& revoked = {});

// Writes ca.crt, ca.crl, user.crt, user.key and agent.toml. Returns the path of agent.toml.
std::string write_user_files(const TestDirectory& directory, const std::string& name,
                             const TestAuthority& authority, const KeyAndCertificate& user,
                             std::uint16_t port,
                             const std::vector<KeyAndCertificate>& revoked = {});

}  // namespace ivy::test
