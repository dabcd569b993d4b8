// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace ivy::test {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result) std::fprintf(stderr, "test certificates: %s\n", result.error().message.c_str());
  return std::move(result).value();
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name, std::int64_t now_unix_s)
    : now_(now_unix_s),
      texts_(make_authority(name, now_ - 400 * kTestDay, now_ + 400 * kTestDay)) {}

KeyAndCertificate TestAuthority::issue(const TestRequest& request) const {
  CertificateRequest full;
  full.common_name = "test";
  full.uris = request.uris;
  full.dns_names = request.dns_names;
  full.addresses = request.addresses;
  full.extended_usages = request.usages;
  full.not_before = now_ + request.from;
  full.not_after = now_ + request.until;
  return must(issue_certificate(texts_, full));
}

KeyAndCertificate TestAuthority::host(const std::string& name,
                                      const std::vector<std::string>& dns_names,
                                      const std::vector<std::string>& addresses) const {
  return issue({.uris = {"ivy://host/" + name},
                .dns_names = dns_names,
                .addresses = addresses,
                .usages = {"serverAuth"}});
}

KeyAndCertificate TestAuthority::user(const std::string& name) const {
  return issue({.uris = {"ivy://user/" + name}, .usages = {"clientAuth"}});
}

KeyAndCertificate TestAuthority::expired_user(const std::string& name) const {
  return issue({.uris = {"ivy://user/" + name},
                .usages = {"clientAuth"},
                .from = -100 * kTestDay,
                .until = -10 * kTestDay});
}

KeyAndCertificate TestAuthority::expired_host(const std::string& name) const {
  return issue({.uris = {"ivy://host/" + name},
                .dns_names = {name},
                .usages = {"serverAuth"},
                .from = -100 * kTestDay,
                .until = -10 * kTestDay});
}

std::string TestAuthority::revocation_list(const std::vector<KeyAndCertificate>& revoked) const {
  std::vector<RevokedSerial> serials;
  for (const KeyAndCertificate& one : revoked) {
    serials.push_back({must(read_certificate(one.certificate_pem)).serial, now_});
  }
  return must(
      sign_revocation_list(texts_, serials, {now_ - kTestDay, now_ + 400 * kTestDay, now_}));
}

TrustAnchor TestAuthority::anchor(const std::vector<KeyAndCertificate>& revoked) const {
  return {texts_.certificate_pem, revocation_list(revoked)};
}

TrustAnchor TestAuthority::anchor() const { return {texts_.certificate_pem, ""}; }

TestDirectory::TestDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "ivy-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    std::perror("mkdtemp");
    std::abort();
  }
  path_ = name;
}

TestDirectory::~TestDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TestDirectory::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path path = std::filesystem::path(path_) / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  chmod(path.c_str(), name.ends_with(".key") ? 0600 : 0644);
  return path.string();
}

std::string TestDirectory::read(const std::string& name) const {
  std::ifstream file(std::filesystem::path(path_) / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string write_host_files(const TestDirectory& directory, const std::string& name,
                             const TestAuthority& authority, const KeyAndCertificate& host,
                             const std::vector<KeyAndCertificate>& revoked) {
  directory.write(name + "/ca.crt", authority.texts().certificate_pem);
  directory.write(name + "/ca.crl", authority.revocation_list(revoked));
  directory.write(name + "/host.key", host.key_pem);
  directory.write(name + "/host.crt", host.certificate_pem);
  return directory / name;
}

std::string write_user_files(const TestDirectory& directory, const std::string& name,
                             const TestAuthority& authority, const KeyAndCertificate& user,
                             std::uint16_t port, const std::vector<KeyAndCertificate>& revoked) {
  directory.write(name + "/ca.crt", authority.texts().certificate_pem);
  directory.write(name + "/ca.crl", authority.revocation_list(revoked));
  directory.write(name + "/user.key", user.key_pem);
  directory.write(name + "/user.crt", user.certificate_pem);
  return directory.write(name + "/agent.toml",
                         "port = " + std::to_string(port) +
                             "\nca = \"ca.crt\"\nrevoked = \"ca.crl\"\ncertificate = "
                             "\"user.crt\"\nkey = \"user.key\"\n");
}

}  // namespace ivy::test
