// SPDX-License-Identifier: Apache-2.0
// The settings of the user's own ssh for one host (`ssh -G`), if libssh can be configured
// identically; otherwise the reason why the OpenSSH client must be used. Conservative: a setting
// that differs from OpenSSH's default and is not known to be harmless needs the client. Pure: texts
// in, values out. Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Values of "~" and the % tokens of a setting.
struct SshUser {
  std::string home;
  std::string name;
};

struct SshTarget {
  std::string host_name;  // HostName, or the name as typed.
  std::string user;
  std::uint16_t port = 22;
  std::vector<std::string>
      identities;                 // Private key files in order; the defaults when none is named.
  bool names_identities = false;  // IdentityFile is set: try its keys before the agent's.
  std::string identity_agent;     // Socket path; empty: SSH_AUTH_SOCK; "none": no agent.
  std::string control_path;       // ControlPath, as written; empty: none.
  std::string known_hosts;        // An absolute path.
  bool may_ask = true;            // True if StrictHostKeyChecking is "ask".
  bool pubkey = true;
  // Options by which the OpenSSH client runs our command in spite of the configuration:
  // "RemoteCommand=none". Only those that this ssh knows.
  std::vector<std::string> client_options;
  // Kept from this job's first login. Later logins must see the same host key.
  struct Login {
    std::string
        fingerprint;  // Of SshHostKey. Empty: no login yet, and the known_hosts files decide.
    std::string algorithms;  // Of SshHostKey.
    bool by_file = false;    // Authenticated with a key file, not the agent: try it first.
  } first_login;
  // Not empty: the OpenSSH client must be used, and why ("proxyjump").
  std::string client_because;
};

// True for "ssh" and "/usr/bin/ssh": a program that takes OpenSSH's options.
bool is_ssh_program(const std::string& program);

// Keyword in lower case -> its values in their order.
using SshSettings = std::map<std::string, std::vector<std::string>, std::less<>>;
// Reads what `ssh -G` prints.
SshSettings parse_ssh_settings(std::string_view text);

// settings: of the host as typed; defaults: without any configuration.
SshTarget ssh_target(const std::string& typed, const SshSettings& settings,
                     const SshSettings& defaults, const SshUser& user);

// False if this text of an ssh configuration cannot change anything that `ssh_target` looks at: it
// is empty, or what distributions ship. `includes_nothing`: no Include line finds a file.
bool may_configure(std::string_view text, bool (*includes_nothing)(const std::string& pattern));

// True if a known_hosts file uses what libssh does not understand (@cert-authority, @revoked).
bool known_hosts_needs_client(std::string_view text);

// The known_hosts files that OpenSSH reads for this target, the user's first. libssh does not read
// those that end in '2'.
std::vector<std::string> known_hosts_files(const SshTarget& target, const SshUser& user);

}  // namespace ivy
