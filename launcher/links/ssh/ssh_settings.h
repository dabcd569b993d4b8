// SPDX-License-Identifier: Apache-2.0
// The settings of the user's own ssh for one host, as `ssh -G` prints them: either as libssh can be
// configured to follow them, or with the reason why the OpenSSH client must be used. A setting that
// differs from OpenSSH's default and is not known to be harmless needs the client. Pure: texts in,
// values out. Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// The values of "~" and of % tokens in settings.
struct SshUser {
  std::string home;
  std::string name;
};

// How to reach a host and log in there.
struct SshTarget {
  std::string host_name;  // HostName, or else the name as typed.
  std::string user;
  std::uint16_t port = 22;
  // Paths of private keys, in order; the default files if the configuration names none.
  std::vector<std::string> identities;
  bool names_identities = false;  // IdentityFile is set: its keys are tried before the agent's.
  // Path of the agent's socket. Empty: SSH_AUTH_SOCK. "none": no agent.
  std::string identity_agent;
  std::string control_path;  // ControlPath, as the configuration has it; empty: none.
  std::string known_hosts;   // An absolute path.
  bool may_prompt = true;    // StrictHostKeyChecking is "ask".
  bool pubkey = true;        // PubkeyAuthentication.
  // Options with which the OpenSSH client runs ivyrun's command in spite of the configuration, such
  // as "RemoteCommand=none". Contains only options that this ssh knows.
  std::vector<std::string> client_options;
  // The result of this job's first login to the host. Later logins must see the same host key.
  struct Login {
    // As in SshHostKey. Empty: no login yet, and the known_hosts files decide.
    std::string fingerprint;
    std::string algorithms;  // As in SshHostKey.
    bool by_file = false;    // A key file was used and not the agent: try that first.
  } first_login;
  // Why the OpenSSH client must be used ("proxyjump"); empty: libssh suffices.
  std::string client_because;
};

// True for a program that takes OpenSSH's options: "ssh", "/usr/bin/ssh".
bool is_ssh_program(const std::string& program);

// For each keyword in lower case, its values in their order.
using SshSettings = std::map<std::string, std::vector<std::string>, std::less<>>;
// Parses the output of `ssh -G`.
SshSettings parse_ssh_settings(std::string_view text);

// settings: the settings of the host as typed. defaults: OpenSSH's without any configuration.
SshTarget ssh_target(const std::string& typed, const SshSettings& settings,
                     const SshSettings& defaults, const SshUser& user);

// Returns false if this text of an ssh configuration cannot change anything that ssh_target()
// reads, because it is empty or has only what distributions ship. includes_nothing: returns true if
// the pattern of an Include line matches no file.
bool may_configure(std::string_view text, bool (*includes_nothing)(const std::string& pattern));

// True if a known_hosts file has lines that libssh does not understand (@cert-authority, @revoked).
bool known_hosts_needs_client(std::string_view text);

// Returns the known_hosts files that OpenSSH reads for this target, the user's first. libssh does
// not read those whose names end in '2'.
std::vector<std::string> known_hosts_files(const SshTarget& target, const SshUser& user);

}  // namespace ivy
