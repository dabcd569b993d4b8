// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_session.h"

#include <fcntl.h>
#include <libssh/libssh.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace ivy {
namespace {

// Without this callback, OpenSSL asks for the passphrase of an old key on the terminal.
int reject_passphrase(const char*, char*, size_t, int, int, void*) { return -1; }

SshStep step_of(int rc) {
  if (rc == SSH_OK) return SshStep::kDone;
  return rc == SSH_AGAIN ? SshStep::kAgain : SshStep::kFailed;
}

// libssh expands escapes in paths, so they are doubled.
std::string with_escapes_doubled(const std::string& path) {
  std::string result;
  for (const char c : path) {
    result += c;
    if (c == '%') result += '%';
  }
  return result;
}

std::string fingerprint_of(ssh_key key) {
  unsigned char* hash = nullptr;
  std::size_t length = 0;
  if (ssh_get_publickey_hash(key, SSH_PUBLICKEY_HASH_SHA256, &hash, &length) != 0) return {};
  char* const text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, length);
  std::string result = text != nullptr ? text : "";
  ssh_string_free_char(text);
  ssh_clean_pubkey_hash(&hash);
  return result;
}

std::string type_of(ssh_key key) {
  switch (ssh_key_type(key)) {
    case SSH_KEYTYPE_ED25519:
      return "ED25519";
    case SSH_KEYTYPE_RSA:
      return "RSA";
    case SSH_KEYTYPE_ECDSA_P256:
    case SSH_KEYTYPE_ECDSA_P384:
    case SSH_KEYTYPE_ECDSA_P521:
      return "ECDSA";
    default:
      return ssh_key_type_to_char(ssh_key_type(key));
  }
}

// Returns the host key algorithms with which a server shows a key of this type.
std::string algorithms_of(ssh_key key) {
  if (ssh_key_type(key) == SSH_KEYTYPE_RSA) return "rsa-sha2-512,rsa-sha2-256,ssh-rsa";
  return ssh_key_type_to_char(ssh_key_type(key));
}

}  // namespace

SshKeys::Key SshKeys::get(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto known = keys_.find(path);
  if (known != keys_.end()) return known->second;
  Key key;
  ssh_key raw = nullptr;
  if (access(path.c_str(), R_OK) == 0 &&
      ssh_pki_import_privkey_file(path.c_str(), nullptr, reject_passphrase, nullptr, &raw) ==
          SSH_OK) {
    key = Key(raw, ssh_key_free);
  }
  keys_[path] = key;
  return key;
}

struct SshSession::Handles {
  ssh_session session = nullptr;
  ssh_channel channel = nullptr;
  Descriptor socket;  // Until the handshake hands it to libssh.
};

SshSession::SshSession(const SshTarget& target)
    : target_(target), handles_(std::make_unique<Handles>()) {}

// Disconnects from the server.
SshSession::~SshSession() {
  if (handles_->session == nullptr) return;
  if (handles_->channel != nullptr) ssh_channel_free(handles_->channel);
  ssh_disconnect(handles_->session);
  ssh_free(handles_->session);
}

Result<std::unique_ptr<SshSession>> SshSession::make(const SshTarget& target, Descriptor socket) {
  std::unique_ptr<SshSession> self(new SshSession(target));
  ssh_session session = ssh_new();
  if (session == nullptr) return Error{Code::kInternal, "libssh: no memory for a session"};
  self->handles_->session = session;
  const int fd = socket.get();
  self->handles_->socket = std::move(socket);
  const int no_configuration = 0;
  const unsigned port = target.port;
  self->watched_socket_.reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  // If this job has logged in to the host before, its key is compared with the key of that login,
  // and no file is read.
  const bool is_again = !target.first_login.fingerprint.empty();
  const std::string known_hosts = is_again ? "/dev/null" : with_escapes_doubled(target.known_hosts);
  bool ok = ssh_options_set(session, SSH_OPTIONS_PROCESS_CONFIG, &no_configuration) == SSH_OK;
  ok = ok && ssh_options_set(session, SSH_OPTIONS_HOST, target.host_name.c_str()) == SSH_OK;
  ok = ok && ssh_options_set(session, SSH_OPTIONS_PORT, &port) == SSH_OK;
  ok = ok && ssh_options_set(session, SSH_OPTIONS_KNOWNHOSTS, known_hosts.c_str()) == SSH_OK;
  if (is_again) {
    ok = ok && ssh_options_set(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null") == SSH_OK;
    ok = ok && ssh_options_set(session, SSH_OPTIONS_HOSTKEYS,
                               target.first_login.algorithms.c_str()) == SSH_OK;
  }
  if (!target.user.empty()) {
    ok = ok && ssh_options_set(session, SSH_OPTIONS_USER, target.user.c_str()) == SSH_OK;
  }
  ok = ok && ssh_options_set(session, SSH_OPTIONS_FD, &fd) == SSH_OK;
  if (!ok) return Error{Code::kInternal, "libssh: " + self->error()};
  ssh_set_blocking(session, 0);
  return self;
}

SshStep SshSession::handshake() {
  handles_->socket.release();
  const SshStep step = step_of(ssh_connect(handles_->session));
  if (step != SshStep::kFailed) {
    // libssh makes the socket blocking once it is connected; a full socket would then block the
    // loop.
    const int fd = ssh_get_fd(handles_->session);
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  }
  return step;
}

bool SshSession::saw_banner() const { return ssh_get_serverbanner(handles_->session) != nullptr; }

SshHostKey SshSession::host_key() {
  SshHostKey result;
  ssh_key server_key = nullptr;
  if (ssh_get_server_publickey(handles_->session, &server_key) != SSH_OK) return result;
  result.type = type_of(server_key);
  result.fingerprint = fingerprint_of(server_key);
  result.algorithms = algorithms_of(server_key);
  ssh_key_free(server_key);
  if (!target_.first_login.fingerprint.empty()) {
    const bool is_same = result.fingerprint == target_.first_login.fingerprint;
    result.verdict = is_same ? SshHostKey::Verdict::kKnown : SshHostKey::Verdict::kReplaced;
    result.known_fingerprint = target_.first_login.fingerprint;
    return result;
  }
  switch (ssh_session_is_known_server(handles_->session)) {
    case SSH_KNOWN_HOSTS_OK:
      result.verdict = SshHostKey::Verdict::kKnown;
      break;
    case SSH_KNOWN_HOSTS_CHANGED:
    case SSH_KNOWN_HOSTS_OTHER:
      result.verdict = SshHostKey::Verdict::kChanged;
      result.known_fingerprint = known_fingerprints();
      break;
    case SSH_KNOWN_HOSTS_UNKNOWN:
    case SSH_KNOWN_HOSTS_NOT_FOUND:
      result.verdict = SshHostKey::Verdict::kUnknown;
      break;
    case SSH_KNOWN_HOSTS_ERROR:
      break;
  }
  return result;
}

std::string SshSession::known_fingerprints() const {
  const std::string name = target_.port == 22
                               ? target_.host_name
                               : "[" + target_.host_name + "]:" + std::to_string(target_.port);
  std::string all;
  for (const std::string& path : {target_.known_hosts, std::string("/etc/ssh/ssh_known_hosts")}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      ssh_knownhosts_entry* entry = nullptr;
      if (ssh_known_hosts_parse_line(name.c_str(), line.c_str(), &entry) != SSH_OK) continue;
      if (entry != nullptr && entry->publickey != nullptr) {
        all += (all.empty() ? "" : ", ") + type_of(entry->publickey) + " " +
               fingerprint_of(entry->publickey);
      }
      ssh_knownhosts_entry_free(entry);
    }
  }
  return all;
}

Result<void> SshSession::remember_host_key() {
  if (ssh_session_update_known_hosts(handles_->session) == SSH_OK) return {};
  return Error{Code::kPermissionDenied, "write " + target_.known_hosts + ": " + error()};
}

SshStep SshSession::try_identities(SshKeys& keys) {
  while (next_identity_ < target_.identities.size() && !is_closed()) {
    if (!key_) key_ = keys.get(target_.identities[next_identity_]);
    const SshStep step = key_ ? try_key() : SshStep::kFailed;
    if (step != SshStep::kFailed) return step;
    key_.reset();
    ++next_identity_;
  }
  return SshStep::kFailed;
}

void SshSession::set_agent(Descriptor agent) {
  watched_agent_.reset(fcntl(agent.get(), F_DUPFD_CLOEXEC, 0));
  has_agent_ = static_cast<bool>(watched_agent_);
  if (has_agent_) ssh_set_agent_socket(handles_->session, agent.release());
}

SshStep SshSession::try_agent() {
  if (!has_agent_ || is_closed()) return SshStep::kFailed;
  const int rc = ssh_userauth_agent(handles_->session, nullptr);
  if (rc == SSH_AUTH_SUCCESS) return SshStep::kDone;
  return rc == SSH_AUTH_AGAIN ? SshStep::kAgain : SshStep::kFailed;
}

SshStep SshSession::try_key() {
  // Signs immediately. Asking first whether the key is acceptable would cost a round trip.
  const int rc = ssh_userauth_publickey(handles_->session, nullptr, key_.get());
  if (rc == SSH_AUTH_SUCCESS) return SshStep::kDone;
  return rc == SSH_AUTH_AGAIN ? SshStep::kAgain : SshStep::kFailed;
}

SshStep SshSession::open_channel() {
  if (handles_->channel == nullptr) handles_->channel = ssh_channel_new(handles_->session);
  if (handles_->channel == nullptr) return SshStep::kFailed;
  return step_of(ssh_channel_open_session(handles_->channel));
}

SshStep SshSession::execute(const std::string& command) {
  return step_of(ssh_channel_request_exec(handles_->channel, command.c_str()));
}

SshRead SshSession::read(char* buffer, std::size_t size, SshStream stream) {
  const std::lock_guard lock(mutex_);
  const int rc =
      ssh_channel_read_nonblocking(handles_->channel, buffer, static_cast<std::uint32_t>(size),
                                   stream == SshStream::kError ? 1 : 0);
  if (rc > 0) return {SshRead::State::kBytes, static_cast<std::size_t>(rc)};
  if (rc == SSH_EOF) return {SshRead::State::kEnd};
  if (rc < 0 && rc != SSH_AGAIN) return {SshRead::State::kBroken};
  if (ssh_channel_is_closed(handles_->channel) != 0) return {SshRead::State::kEnd};
  return {SshRead::State::kNothing};
}

long SshSession::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const int rc =
      ssh_channel_write(handles_->channel, bytes.data(), static_cast<std::uint32_t>(bytes.size()));
  if (rc == SSH_AGAIN) return 0;
  return rc < 0 ? -1 : rc;
}

std::size_t SshSession::write_window() const {
  const std::lock_guard lock(mutex_);
  return ssh_channel_window_size(handles_->channel);
}

bool SshSession::is_closed() const {
  const std::lock_guard lock(mutex_);
  return (ssh_get_status(handles_->session) & (SSH_CLOSED | SSH_CLOSED_ERROR)) != 0;
}

bool SshSession::wants_write() const {
  const std::lock_guard lock(mutex_);
  return (ssh_get_poll_flags(handles_->session) & SSH_WRITE_PENDING) != 0;
}

// Polls the other stream: that makes libssh use the socket even if there is unread output.
void SshSession::flush() {
  const std::lock_guard lock(mutex_);
  ssh_channel_poll(handles_->channel, 1);
}

bool SshSession::is_finished() const {
  if (exit_status() >= 0) return true;
  const std::lock_guard lock(mutex_);
  return ssh_channel_is_closed(handles_->channel) != 0 || ssh_is_connected(handles_->session) == 0;
}

int SshSession::exit_status() const {
  const std::lock_guard lock(mutex_);
  return handles_->channel != nullptr ? ssh_channel_get_exit_status(handles_->channel) : -1;
}

std::string SshSession::error() const {
  const std::lock_guard lock(mutex_);
  const char* text = ssh_get_error(handles_->session);
  std::string result = text != nullptr ? text : "";
  std::replace(result.begin(), result.end(), '\n', ' ');
  return result;
}

std::string SshSession::accepted_methods() const {
  const int methods = ssh_userauth_list(handles_->session, nullptr);
  std::string names;
  const auto add = [&](int bit, const char* name) {
    if ((methods & bit) != 0) names += (names.empty() ? "" : ",") + std::string(name);
  };
  add(SSH_AUTH_METHOD_PUBLICKEY, "publickey");
  add(SSH_AUTH_METHOD_PASSWORD, "password");
  add(SSH_AUTH_METHOD_HOSTBASED, "hostbased");
  add(SSH_AUTH_METHOD_INTERACTIVE, "keyboard-interactive");
  add(SSH_AUTH_METHOD_GSSAPI_MIC, "gssapi-with-mic");
  return names;
}

void SshSession::abandon() {
  ::shutdown(watched_socket_.get(), SHUT_RDWR);
  if (has_agent_) ::shutdown(watched_agent_.get(), SHUT_RDWR);
}

}  // namespace ivy
