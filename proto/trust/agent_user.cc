// SPDX-License-Identifier: Apache-2.0
#include "proto/trust/agent_user.h"

#include <array>
#include <cerrno>
#include <fstream>

namespace ivy {
namespace {

// Certificates and keys are a few KiB; a file longer than any revocation list is rejected.
constexpr std::size_t kMaxPemBytes = 2 * kMaxRevocationBytes;

Result<std::string> read_pem(const std::string& path, const std::string& what) {
  constexpr const char* kFix =
      "agent.toml refers to this file; ivy-agent cert --user NAME creates both";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    Error failure = errno_error(Code::kNotFound, what + " " + path, errno);
    failure.fix = kFix;
    return failure;
  }
  std::string text;
  std::array<char, 16384> piece{};
  while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxPemBytes) break;
  }
  if (file.bad() || text.empty() || text.size() > kMaxPemBytes) {
    return Error{Code::kDataLoss, what + " " + path + " is empty, too long or cannot be read",
                 kFix};
  }
  return text;
}

// Checks this user's certificate as an agent will, so that the error appears here and not in a
// remote log.
Result<CertificateIdentity> check_self(const AgentIdentity& own_identity, const std::string& path,
                                       std::int64_t now_unix_s) {
  const Result<CertificateIdentity> self = read_certificate(own_identity.certificate_pem);
  if (!self.ok()) return self.error().context("your certificate " + path);
  Result<CertificateIdentity> verified = verify_certificate(
      own_identity.certificate_pem, own_identity.anchor, CertificateRole::kUser, now_unix_s);
  if (verified.ok()) return verified;
  Error error = verified.error().context("your certificate " + path);
  if (self->not_after <= now_unix_s) {
    error.fix = "renew it on the host with the CA: ivy-agent renew --user " + self->name;
  } else if (error.fix.empty()) {
    error.fix = "make another on the host with the CA: ivy-agent cert --user " + self->name;
  }
  return error;
}

}  // namespace

Result<std::optional<AgentIdentity>> load_agent_identity(const Environment& environment,
                                                         std::int64_t now_unix_s) {
  const std::optional<AgentConfig> config = IVY_TRY(load_agent_config(environment));
  if (!config) return std::optional<AgentIdentity>();
  AgentIdentity own_identity;
  own_identity.port = config->port;
  own_identity.anchor.ca_pem = IVY_TRY(read_pem(config->ca, "CA"));
  if (!config->revoked.empty()) {
    own_identity.anchor.crl_pem = IVY_TRY(read_pem(config->revoked, "revocation list"));
  }
  own_identity.certificate_pem = IVY_TRY(read_pem(config->certificate, "certificate"));
  own_identity.key_pem = IVY_TRY(read_pem(config->key, "key"));
  // The anchor will be used to check every agent of the job; check_self() below reports its faults.
  (void)prepare_anchor(own_identity.anchor);
  own_identity.self = IVY_TRY(check_self(own_identity, config->certificate, now_unix_s));
  return std::optional<AgentIdentity>(std::move(own_identity));
}

Result<CertificateIdentity> check_agent(const AgentIdentity& own_identity,
                                        const std::string& host_name, const std::string& chain_pem,
                                        std::int64_t now_unix_s) {
  const CertificateIdentity agent = IVY_TRY(
      verify_certificate(chain_pem, own_identity.anchor, CertificateRole::kHost, now_unix_s));
  IVY_CHECK(check_host_name(agent, host_name));
  if (!agent.serves.empty() && agent.serves != own_identity.self.name) {
    return Error{
        Code::kPermissionDenied,
        "host/" + agent.name + " serves " + agent.serves + ", not " + own_identity.self.name,
        "start an agent for " + own_identity.self.name + " there: systemctl start ivy-agent@" +
            own_identity.self.name};
  }
  return agent;
}

}  // namespace ivy
