// SPDX-License-Identifier: Apache-2.0
// Support for tests of the agent: a temporary directory, the captured log, and a CA.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "proto/trust/agent_certificate.h"
#include "tests/support/certificate_issue.h"
#include "tests/support/eventually.h"

namespace ivy::test {

constexpr std::int64_t kDay = 86'400;

// A directory below /tmp that is removed with this object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = "/tmp/ivy-agent-test-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    // Written next to the file and then renamed, as a careful tool does it.
    std::ofstream(*this / (name + ".new")) << content;
    if (name.ends_with(".key")) chmod((*this / (name + ".new")).c_str(), 0600);
    std::filesystem::rename(*this / (name + ".new"), *this / name);
  }

 private:
  std::string path_;
};

// Redirects standard error of this process to a file, so that a test can read the agent's log.
class CapturedLog {
 public:
  CapturedLog() : path_(directory_ / "log"), saved_(dup(STDERR_FILENO)) {
    std::FILE* const file = std::fopen(path_.c_str(), "w");
    dup2(fileno(file), STDERR_FILENO);
    std::fclose(file);
  }
  ~CapturedLog() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    if (::testing::Test::HasFailure()) std::fputs(text().c_str(), stderr);
  }
  std::string text() const {
    std::ifstream file(path_);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  bool eventually_contains(const std::string& part) const {
    return eventually([&] { return text().find(part) != std::string::npos; });
  }

 private:
  TemporaryDirectory directory_;
  std::string path_;
  int saved_;
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test CA")
      : authority_(make_authority(name, now() - kDay, now() + 100 * kDay)) {}

  static std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }
  const std::string& certificate() const { return authority_.certificate_pem; }

  KeyAndCertificate host(const std::string& name = "node1", std::int64_t days = 90,
                         const std::string& serves = {}) const {
    CertificateRequest request;
    request.common_name = name;
    request.uris = {"ivy://host/" + name};
    if (!serves.empty()) request.uris.push_back("ivy://serves/" + serves);
    request.dns_names = {name};
    request.addresses = {"127.0.0.1", "::1"};
    request.extended_usages = {"serverAuth"};
    return issue(request, days);
  }
  KeyAndCertificate user(const std::string& name, std::int64_t days = 90) const {
    CertificateRequest request;
    request.common_name = name;
    request.uris = {"ivy://user/" + name};
    request.extended_usages = {"clientAuth"};
    return issue(request, days);
  }
  std::string revocation_of(const std::string& certificate_pem) {
    const auto identity = read_certificate(certificate_pem);
    return *sign_revocation_list(authority_, {{identity->serial, now()}},
                                 {now() - 60, now() + 30 * kDay, ++revocation_number_});
  }

 private:
  KeyAndCertificate issue(CertificateRequest& request, std::int64_t days) const {
    // An expired certificate, too, starts before it expires.
    request.not_before = now() - (days < 0 ? 10 : 1) * kDay;
    request.not_after = now() + days * kDay;
    return *issue_certificate(authority_, request);
  }
  KeyAndCertificate authority_;
  std::int64_t revocation_number_ = 0;
};

}  // namespace ivy::test
