// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/agent_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include "launcher/links/this_host.h"
#include "proto/trust/agent_config.h"

namespace ivy {
namespace {

std::string renew_user(const CertificateIdentity& self) {
  return "ivy-agent renew --user " + self.name;
}

bool is_owned(const struct stat& status) {
  return status.st_uid == geteuid() || status.st_uid == 0;
}

// In /tmp, any user could create a socket at that path.
bool is_safe_socket(const std::string& path) {
  struct stat directory {};
  struct stat socket {};
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  if (lstat(path.c_str(), &socket) != 0 || !S_ISSOCK(socket.st_mode) || !is_owned(socket)) {
    return false;
  }
  if (stat(parent.empty() ? "/" : parent.c_str(), &directory) != 0) return false;
  return is_owned(directory) && (directory.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

Result<std::string> find_agent_socket(const Environment& environment) {
  const std::string* chosen = find_variable(environment, "IVY_AGENT_SOCKET");
  if (chosen != nullptr && chosen->empty()) {
    return Error{Code::kNotFound, "IVY_AGENT_SOCKET is empty", "unset it"};
  }
  const std::string user = own_account().empty() ? std::to_string(geteuid()) : own_account();
  std::string searched;
  for (const std::string& path : agent_socket_paths(environment, user, geteuid())) {
    if (is_safe_socket(path)) return path;
    searched += (searched.empty() ? "" : ", ") + path;
  }
  return Error{Code::kNotFound,
               "your agent does not run on this host: there is no socket at " + searched,
               "start one: systemctl start ivy-agent@" + user + ", or: ivy-agent serve"};
}

std::string own_expiry_warning(const AgentIdentity& own_identity, std::int64_t now_unix_s) {
  const std::string when = expiry_warning(own_identity.self.not_after, now_unix_s);
  if (when.empty()) return {};
  return "your certificate user/" + own_identity.self.name + " " + when +
         "; renew it: " + renew_user(own_identity.self);
}

std::string host_expiry_warning(const std::string& host, std::int64_t expires_at,
                                std::int64_t now_unix_s) {
  if (expires_at == 0) return {};
  const std::string when = expiry_warning(expires_at, now_unix_s);
  if (when.empty()) return {};
  return "the certificate of the agent on " + host + " " + when + "; renew it: ivy-agent renew " +
         host;
}

}  // namespace ivy
