// SPDX-License-Identifier: Apache-2.0
// In this order: finding the files (find_certificates()); reading and checking them as a whole
// (read_all(), which may block and so runs on the pool after the start); the verifier that gRPC
// calls at the end of a handshake; and AgentCredentials, which publishes a new set to gRPC only if
// all of it is valid (install(), use()).
#include "agent/daemon/net/agent_credentials.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/conf.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "agent/daemon/net/agent_log.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/trust/agent_config.h"
#include "proto/trust/libcrypto.h"

namespace ivy {
namespace {

constexpr const char* kCa = "ca.crt";
constexpr const char* kRevoked = "ca.crl";
constexpr const char* kCertificate = "host.crt";
constexpr const char* kKey = "host.key";
constexpr std::array<const char*, 4> kFiles{kCa, kRevoked, kCertificate, kKey};

constexpr unsigned kProviderIntervalS = 1;  // gRPC accepts no shorter interval.
constexpr std::int64_t kDayS = 86'400;

// Returns the value of a variable, or null if it is not set or empty.
const std::string* find_value(const Environment& environment, const std::string& name) {
  const std::string* const found = find_variable(environment, name);
  return found == nullptr || found->empty() ? nullptr : found;
}

Error fault(const std::string& message, const std::string& fix) {
  return Error{Code::kFailedPrecondition, message, fix};
}

Result<std::string> read_certificate_file(const std::string& path, std::size_t limit) {
  std::optional<std::string> content = read_file(path, limit + 1, O_NONBLOCK);
  if (!content)
    return errno_error(errno == ENOENT ? Code::kNotFound : Code::kFailedPrecondition,
                       "cannot read " + path, errno);
  if (content->size() > limit)
    return fault(path + " is larger than " + std::to_string(limit) + " bytes",
                 "check that this is the right file");
  return *std::move(content);
}

bool key_fits(const std::string& key_pem, const std::string& certificate_pem) {
  const Key key = read_pem_key(key_pem);
  const Certificate certificate = read_pem_certificate(certificate_pem);
  return key && certificate && X509_check_private_key(certificate.get(), key.get()) == 1;
}

// Makes a file in memory, so that the key is not copied to a disk.
Result<Descriptor> memory_file(const std::string& content) {
  Descriptor file(memfd_create("ivy-agent-certificate", MFD_CLOEXEC));
  if (!file) return errno_error(Code::kInternal, "memfd_create", errno);
  if (!write_all(file.get(), content))
    return errno_error(Code::kInternal, "write of a file in memory", errno);
  return file;
}

struct FreeText {
  void operator()(char* text) const { OPENSSL_free(text); }
};

// Returns true if the system's OpenSSL configuration sets defaults for TLS.
bool has_tls_defaults() {
  const std::unique_ptr<char, FreeText> path(CONF_get1_default_config_file());
  const std::unique_ptr<CONF, Free<NCONF_free>> settings(NCONF_new(nullptr));
  if (!path || NCONF_load(settings.get(), path.get(), nullptr) <= 0) return false;
  const char* const section = NCONF_get_string(settings.get(), nullptr, "openssl_conf");
  return section != nullptr && NCONF_get_string(settings.get(), section, "ssl_conf") != nullptr;
}

// Turns TLS session tickets off, because no launcher uses them, and they take a tenth of our
// processor time for a connection. gRPC has no switch for them, but OpenSSL's configuration has
// one. There can be only one set of defaults, so an administrator's is left unchanged, tickets
// included.
void leave_out_tickets() {
  static constexpr char kNone[] =
      "openssl_conf = ivy\n[ivy]\nssl_conf = contexts\n[contexts]\nsystem_default = all\n"
      "[all]\nNumTickets = 0\n";
  OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, nullptr);
  if (!has_tls_defaults()) {
    const Bio text = memory_of(kNone);
    const std::unique_ptr<CONF, Free<NCONF_free>> none(NCONF_new(nullptr));
    if (NCONF_load_bio(none.get(), text.get(), nullptr) <= 0 ||
        CONF_modules_load(none.get(), nullptr, 0) <= 0)
      agent_log::warning("cannot turn off TLS session tickets in OpenSSL; the agent sends them");
  }
  ERR_clear_error();
}

}  // namespace

std::vector<std::string> certificate_directories(const std::string& requested,
                                                 const Environment& environment) {
  if (!requested.empty()) return {requested};
  std::vector<std::string> directories;
  if (const std::string* given = find_value(environment, "CREDENTIALS_DIRECTORY"))
    directories.push_back(*given);
  directories.push_back("/etc/ivyrun/agent");
  // The XDG specification says that a relative path counts as unset.
  const std::string* const config = find_value(environment, "XDG_CONFIG_HOME");
  if (config != nullptr && config->starts_with('/'))
    directories.push_back(*config + "/ivyrun/agent");
  else if (const std::string* home = find_value(environment, "HOME"))
    directories.push_back(*home + "/.config/ivyrun/agent");
  return directories;
}

Result<CertificateFiles> find_certificates(const std::string& requested,
                                           const Environment& environment) {
  std::string searched;
  for (const std::string& directory : certificate_directories(requested, environment)) {
    const CertificateFiles files{directory};
    if (access(files.path(kCertificate).c_str(), F_OK) == 0) return files;
    searched += (searched.empty() ? "" : ", ") + directory;
  }
  return Error{
      Code::kNotFound, "no certificate for this host: there is no host.crt in " + searched,
      "make one with `ivy-agent cert HOST --serves USER` on the host with the CA, copy its "
      "directory here and "
      "pass it with --certificates"};
}

struct AgentCredentials::Loaded {
  TrustAnchor anchor;
  bool lacks_revoked = false;
  CertificateIdentity own;
  std::string key_and_certificate;
};

namespace {

// Checks the CA first, so that an error names the file that has the fault.
Result<void> prepare(TrustAnchor& anchor, const CertificateFiles& files) {
  TrustAnchor authority;
  authority.ca_pem = anchor.ca_pem;
  if (const Result<void> good = prepare_anchor(authority); !good.ok())
    return fault(files.path(kCa) + ": " + good.error().message,
                 "copy it again from the directory of the CA");
  if (const Result<void> good = prepare_anchor(anchor); !good.ok())
    return fault(
        files.path(kRevoked) + ": " + good.error().message,
        good.error().fix.empty() ? "copy it again from the directory of the CA" : good.error().fix);
  return {};
}

// Returns the revocation list, or nothing if its file does not exist.
Result<std::optional<std::string>> read_revoked(const std::string& path) {
  const Result<std::string> list = read_certificate_file(path, kMaxRevocationBytes);
  if (!list.ok() && list.error().code == Code::kNotFound) return std::optional<std::string>();
  if (!list.ok()) return list.error();
  // The file may be empty while it is being copied. An empty list would admit every revoked
  // certificate again.
  if (list->find_first_not_of(" \t\r\n") == std::string::npos)
    return fault(path + " is empty", "copy it again from the directory of the CA, or remove it");
  return std::optional<std::string>(*list);
}

}  // namespace

struct AgentCredentials::Stamp {
  std::int64_t modified_ns = 0;
  std::int64_t size = -1;  // Negative if the file does not exist.
  std::uint64_t inode = 0;
  bool operator==(const Stamp&) const = default;
};

Result<AgentCredentials::Loaded> AgentCredentials::read_all(const CertificateFiles& files,
                                                            const std::string& user,
                                                            const std::string& last_revoked) {
  Loaded loaded;
  loaded.anchor.ca_pem = IVY_TRY(read_certificate_file(files.path(kCa), kMaxCertificateBytes));
  const std::optional<std::string> revoked = IVY_TRY(read_revoked(files.path(kRevoked)));
  loaded.lacks_revoked = !revoked;
  // A revoked certificate stays revoked when the list is removed.
  loaded.anchor.crl_pem = revoked.value_or(last_revoked);
  IVY_CHECK(prepare(loaded.anchor, files));
  const std::string certificate =
      IVY_TRY(read_certificate_file(files.path(kCertificate), kMaxCertificateBytes));
  if (const auto readable = read_certificate(certificate); !readable.ok())
    return fault(files.path(kCertificate) + ": " + readable.error().message,
                 "copy it again from the directory that `ivy-agent cert HOST` made");
  const std::string key = IVY_TRY(read_certificate_file(files.path(kKey), kMaxCertificateBytes));
  IVY_CHECK(check_key_is_private(files.path(kKey), "ivy-agent renew HOST"));
  if (!key_fits(key, certificate))
    return fault(files.path(kKey) + " is not the key of " + files.path(kCertificate),
                 "copy both from the directory that `ivy-agent cert HOST` made");
  const auto own = verify_certificate(certificate, loaded.anchor, CertificateRole::kHost, wall_s());
  if (!own.ok()) {
    Error error = own.error().context(files.path(kCertificate));
    error.code = Code::kFailedPrecondition;
    if (error.fix.empty())
      error.fix = "make a new one with `ivy-agent renew` on the host with the CA";
    return error;
  }
  loaded.own = *own;
  if (!own->serves.empty() && own->serves != user)
    return fault(files.path(kCertificate) + " serves only user " + own->serves + ", not " + user,
                 "start the agent as " + own->serves +
                     ", or make a certificate with `ivy-agent cert " + own->name + " --serves " +
                     user + "`");
  loaded.key_and_certificate = key + "\n" + certificate;
  return loaded;
}

// The result of reading the files. `loaded` is empty if none of them had changed.
struct AgentCredentials::Reading {
  std::vector<Stamp> stamps;
  std::optional<Result<Loaded>> loaded;
};

std::vector<AgentCredentials::Stamp> AgentCredentials::stamps_of(const CertificateFiles& files) {
  std::vector<Stamp> result;
  for (const char* name : kFiles) {
    struct stat status {};
    if (stat(files.path(name).c_str(), &status) != 0) {
      result.push_back({});
      continue;
    }
    result.push_back({status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec,
                      status.st_size, status.st_ino});
  }
  return result;
}

Result<CertificateIdentity> check_client_certificate(std::string_view pem,
                                                     const TrustAnchor& anchor,
                                                     const std::string& user,
                                                     std::int64_t now_unix_s) {
  CertificateIdentity identity =
      IVY_TRY(verify_certificate(pem, anchor, CertificateRole::kUser, now_unix_s));
  if (identity.name != user)
    return Error{Code::kPermissionDenied,
                 "certificate user/" + identity.name + " serial " + identity.serial +
                     " may not launch jobs here: this agent serves only " + user,
                 "launch jobs on hosts where an agent of " + identity.name + " runs"};
  return identity;
}

// Called by gRPC when a handshake has ended, on one of its threads.
class AgentCredentials::ClientVerifier final
    : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit ClientVerifier(const AgentCredentials& credentials) : credentials_(credentials) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* sync_status) override {
    const grpc::string_ref pem = request->peer_cert();
    const std::string_view certificate(pem.data(), pem.size());
    const auto identity =
        certificate.empty()
            ? Result<CertificateIdentity>(
                  Error{Code::kUnauthenticated, "it presented no certificate",
                        "launchers need a certificate, made with `ivy-agent cert --user NAME`"})
            : credentials_.check_client(certificate);
    if (identity.ok()) {
      *sync_status = grpc::Status::OK;
      return true;
    }
    const Error& error = identity.error();
    agent_log::rejection("rejected " + credentials_.handshakes_.suspects() + ": " + error.message +
                         (error.fix.empty() ? "" : "; " + error.fix));
    *sync_status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "certificate rejected");
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const AgentCredentials& credentials_;
};

AgentCredentials::AgentCredentials(CertificateFiles files, std::string user,
                                   HandshakeLimiter& handshakes)
    : files_(std::move(files)), user_(std::move(user)), handshakes_(handshakes) {}

AgentCredentials::~AgentCredentials() { server_credentials_.reset(); }

Result<void> AgentCredentials::install(Loaded loaded) {
  Descriptor file = IVY_TRY(memory_file(loaded.key_and_certificate));
  if (!published_) {
    published_ = std::move(file);
  } else if (dup3(file.get(), published_.get(), O_CLOEXEC) < 0) {
    // dup3() replaces the file in one step, so gRPC's provider never sees half of each pair.
    return errno_error(Code::kInternal, "dup3", errno);
  }
  const std::lock_guard lock(mutex_);
  anchor_ = std::make_shared<const TrustAnchor>(std::move(loaded.anchor));
  accepted_.reset();
  own_ = std::move(loaded.own);
  return {};
}

Result<std::unique_ptr<AgentCredentials>> AgentCredentials::load(const CertificateFiles& files,
                                                                 const std::string& user,
                                                                 HandshakeLimiter& handshakes) {
  std::unique_ptr<AgentCredentials> made(new AgentCredentials(files, user, handshakes));
  made->stamps_ = stamps_of(files);
  Loaded loaded = IVY_TRY(read_all(files, user, {}));
  if (loaded.lacks_revoked)
    agent_log::warning(files.path(kRevoked) +
                       " does not exist, so no certificate is treated as revoked; copy it from the "
                       "directory of the "
                       "CA, where `ivy-agent revoke` writes it");
  IVY_CHECK(made->install(std::move(loaded)));
  made->log_served_users();

  leave_out_tickets();
  namespace tls = grpc::experimental;
  const std::string published = "/proc/self/fd/" + std::to_string(made->published_.get());
  auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(published, published,
                                                                        kProviderIntervalS);
  tls::TlsServerCredentialsOptions options(std::move(provider));
  options.watch_identity_key_cert_pairs();
  // The verifier is called even if the client presents no certificate; OpenSSL proves that the
  // client has the key. "Require" would end the handshake before we could log why.
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ClientVerifier>(*made));
  options.set_check_call_host(false);
  made->server_credentials_ = tls::TlsServerCredentials(options);
  return made;
}

std::shared_ptr<grpc::ServerCredentials> AgentCredentials::server_credentials() const {
  return server_credentials_;
}

void AgentCredentials::reread(BlockingPool& files, bool forced) {
  if (is_reading_) {
    reads_again_ = reads_again_ || forced;
    return;
  }
  is_reading_ = true;
  auto read = [files = files_, user = user_, last_revoked = anchor()->crl_pem, last = stamps_,
               forced]() -> Result<std::shared_ptr<const Reading>> {
    auto reading = std::make_shared<Reading>();
    reading->stamps = stamps_of(files);
    if (forced || reading->stamps != last) reading->loaded = read_all(files, user, last_revoked);
    return std::shared_ptr<const Reading>(std::move(reading));
  };
  auto use_it = [this, &files, alive = std::weak_ptr<bool>(alive_)](
                    const Result<std::shared_ptr<const Reading>>& reading) {
    if (alive.expired()) return;
    is_reading_ = false;
    if (reading.ok()) use(**reading);
    if (std::exchange(reads_again_, false)) reread(files, true);
  };
  files.run("the file system of " + files_.directory, BlockingPool::kNoDeadline, std::move(read),
            std::move(use_it));
}

void AgentCredentials::use(const Reading& reading) {
  if (!reading.loaded) return;
  stamps_ = reading.stamps;
  const Result<Loaded>& loaded = *reading.loaded;
  const bool keeps_last = loaded.ok() && loaded->lacks_revoked && !anchor()->crl_pem.empty();
  const Result<void> taken = loaded.ok() ? install(*loaded) : Result<void>(loaded.error());
  if (!taken.ok()) {
    agent_log::error("the certificate files have changed but cannot be used: " +
                     taken.error().message + "; the previous ones stay in use" +
                     (taken.error().fix.empty() ? "" : "; " + taken.error().fix));
    return;
  }
  if (keeps_last && !keeps_last_revoked_)
    agent_log::warning(files_.path(kRevoked) +
                       " no longer exists: the last revocation list stays in use until this "
                       "agent exits; copy the list again from the directory of the CA");
  keeps_last_revoked_ = keeps_last;
  agent_log::notice("certificates of " + files_.directory + " reloaded: " + description());
  expiry_logged_at_ = 0;
  log_expiry();
  log_served_users();
}

void AgentCredentials::log_served_users() const {
  const std::lock_guard lock(mutex_);
  if (!own_.serves.empty()) return;
  agent_log::warning("the certificate " + files_.path(kCertificate) + " is valid for any user: " +
                     user_ + ", and every program of that account that reads " + files_.path(kKey) +
                     ", can impersonate the agent of " + own_.name +
                     " towards every other user and read the secrets of their jobs; replace it, on "
                     "the host with the CA, with "
                     "`ivy-agent cert " +
                     own_.name + " ... --serves " + user_ + "`");
}

void AgentCredentials::log_expiry() {
  const std::int64_t now = wall_s();
  if (expiry_logged_at_ != 0 && now - expiry_logged_at_ < kDayS) return;
  const std::string warning = expiry_warning(expires_at(), now);
  if (warning.empty()) return;
  expiry_logged_at_ = now;
  agent_log::warning(
      "the certificate " + files_.path(kCertificate) + " " + warning +
      ": after that launchers reject this agent; run `ivy-agent renew` on the host with the CA "
      "and copy the new files here; no restart is needed");
}

Result<CertificateIdentity> AgentCredentials::check_client(std::string_view pem) const {
  const std::int64_t now = wall_s();
  std::shared_ptr<const TrustAnchor> anchor;
  {
    const std::lock_guard lock(mutex_);
    anchor = anchor_;
    const bool is_fresh =
        accepted_ && now >= accepted_->at_unix_s && now <= accepted_->at_unix_s + 1;
    if (is_fresh && accepted_->pem == pem && now <= accepted_->identity.not_after)
      return accepted_->identity;
  }
  Result<CertificateIdentity> identity = check_client_certificate(pem, *anchor, user_, now);
  if (!identity.ok()) return identity;
  const auto accepted = std::make_shared<const AcceptedCertificate>(
      AcceptedCertificate{std::string(pem), *identity, now});
  const std::lock_guard lock(mutex_);
  if (anchor == anchor_) accepted_ = accepted;
  return identity;
}

std::shared_ptr<const TrustAnchor> AgentCredentials::anchor() const {
  const std::lock_guard lock(mutex_);
  return anchor_;
}

std::string AgentCredentials::description() const {
  const std::lock_guard lock(mutex_);
  return "host/" + own_.name + " serial " + own_.serial + " until " +
         certificate_date(own_.not_after);
}

std::int64_t AgentCredentials::expires_at() const {
  const std::lock_guard lock(mutex_);
  return own_.not_after;
}

}  // namespace ivy
