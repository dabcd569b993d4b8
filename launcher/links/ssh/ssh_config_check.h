// Reads what the user's ssh configuration says about one host, where libssh can be set up exactly
// the same; else gives the reason why the OpenSSH client must take over. Conservative: an option
// not known here to be harmless belongs to the client. Pure: texts in, values out. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Where "~" and the % signs of a configuration point to.
struct SshUser {
  std::string home;
  std::string name;
};

struct SshTarget {
  std::string host_name;  // HostName, or the name as typed.
  std::string user;       // Empty: the caller's own name.
  std::uint16_t port = 22;
  std::vector<std::string>
      identities;              // Private key files in order; the defaults when none is named.
  std::string identity_agent;  // Socket path; empty: SSH_AUTH_SOCK; "none": no agent.
  std::string known_hosts;     // Absolute path.
  bool may_ask = true;         // StrictHostKeyChecking is not "yes".
  bool pubkey = true;          // PubkeyAuthentication
  // Not empty: the OpenSSH client must be used, and why ("ProxyJump").
  std::string client_because;
};

// typed: user and port as the user wrote them for this host win over the configuration.
struct SshTyped {
  std::string host;
  std::string user;        // Empty: not written.
  std::uint16_t port = 0;  // 0: not written.
};

// An Include line is replaced by what it includes, between these two lines.
inline constexpr std::string_view kIncludeBegins = "\x02";
inline constexpr std::string_view kIncludeEnds = "\x03";

// configs: the texts of the user's and the system's configuration, in this order.
SshTarget ssh_target(const SshTyped& typed, const std::vector<std::string>& configs,
                     const SshUser& user);

// True if a known_hosts file uses what libssh does not understand (@cert-authority, @revoked).
bool known_hosts_needs_client(std::string_view text);

// The known_hosts files that OpenSSH reads for this target, the user's first. libssh does not read
// those that end in '2'.
std::vector<std::string> known_hosts_files(const SshTarget& target, const SshUser& user);

// OpenSSH's pattern list: "*.example !bad.example" (blanks or commas), '*' and '?'.
bool matches_ssh_pattern_list(std::string_view host, std::string_view patterns);

}  // namespace ivy
