// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_advice.h"

#include <array>
#include <sstream>

#include "launcher/links/remote_greeting.h"

namespace ivy {
namespace {

struct Phrase {
  std::string_view text;
  LinkFailure failure;
};

// The first phrase that occurs in the text decides.
constexpr std::array<Phrase, 18> kPhrases = {{
    {"REMOTE HOST IDENTIFICATION HAS CHANGED", LinkFailure::kHostKey},
    {"Host key verification failed", LinkFailure::kHostKey},
    {"host key is known for", LinkFailure::kHostKey},
    {"Could not resolve hostname", LinkFailure::kUnresolved},
    {"Permission denied (", LinkFailure::kAuthentication},
    {"Too many authentication failures", LinkFailure::kAuthentication},
    {"Connection refused", LinkFailure::kRefused},
    {"No route to host", LinkFailure::kUnreachable},
    {"Network is unreachable", LinkFailure::kUnreachable},
    {"timed out", LinkFailure::kUnreachable},
    {"Connection closed by", LinkFailure::kRefused},
    {"Connection reset by", LinkFailure::kRefused},
    {"Bad configuration option", LinkFailure::kBootstrap},
    {"Bad owner or permissions", LinkFailure::kBootstrap},
    {"No user exists for uid", LinkFailure::kBootstrap},
    {"command not found", LinkFailure::kBootstrap},
    {"not available", LinkFailure::kBootstrap},
    {"not found", LinkFailure::kBootstrap},
}};

std::string known_hosts_name(const SshTarget& target) {
  if (target.port == 22) return target.host_name;
  return "[" + target.host_name + "]:" + std::to_string(target.port);
}

}  // namespace

std::string ssh_true(const Host& host, std::uint16_t port, const std::string& config_path,
                     PromptChoice prompt, const std::vector<std::string>& options) {
  std::vector<std::string> all;
  if (prompt == PromptChoice::kNeverPrompt) all.emplace_back("BatchMode=yes");
  all.insert(all.end(), options.begin(), options.end());
  return ssh_run(host, port, config_path, all, "true");
}

std::string ssh_run(const Host& host, std::uint16_t port, const std::string& config_path,
                    const std::vector<std::string>& options, const std::string& command) {
  std::string words = "ssh";
  for (const std::string& option : options) words += " -o " + option;
  if (!config_path.empty()) words += " -F " + config_path;
  if (port != 0) words += " -p " + std::to_string(port);
  if (!host.user.empty()) words += " -l " + host.user;
  return words + " " + host.name + " " + command;
}

std::string silent_agent_fix() {
  return "make sure that ssh-add -l lists your keys; or unset SSH_AUTH_SOCK, and name a key file: "
         "IdentityFile in "
         "~/.ssh/config";
}

LinkDown host_key_failure(const Host& host, const SshTarget& target, const SshHostKey& key,
                          const std::string& config_path) {
  LinkDown down;
  down.failure = LinkFailure::kHostKey;
  const std::uint16_t port = host.port != 0 || target.port == 22 ? host.port : target.port;
  const std::string try_it = ssh_true(host, port, config_path, PromptChoice::kMayPrompt);
  const std::string key_text = key.type + " " + key.fingerprint;
  switch (key.verdict) {
    case SshHostKey::Verdict::kChanged:
      down.message = "the host key has changed: the server presented " + key_text + ", " +
                     target.known_hosts + " has " +
                     (key.known_fingerprint.empty() ? "another" : key.known_fingerprint);
      down.fix = "if the change is expected: ssh-keygen -R '" + known_hosts_name(target) + "' -f " +
                 target.known_hosts + "\nthen: " + try_it;
      break;
    case SshHostKey::Verdict::kReplaced:
      down.message =
          "the host key has changed since this job's first login: the server presented " +
          key_text + ", earlier it was " + key.known_fingerprint;
      down.fix = "another machine may be answering under this name; try: " + try_it;
      break;
    case SshHostKey::Verdict::kUnreadable:
      down.message = "the host key cannot be compared with " + target.known_hosts;
      down.fix = try_it;
      break;
    default:
      down.message = "unknown host key: " + key_text + " is not in " + target.known_hosts;
      down.fix = try_it + "   (asks once and remembers the key)";
      break;
  }
  return down;
}

LinkFailure classify_client_failure(std::string_view error_text) {
  for (const Phrase& phrase : kPhrases) {
    if (error_text.find(phrase.text) != std::string_view::npos) return phrase.failure;
  }
  return LinkFailure::kBroken;
}

std::string client_fix(std::string_view error_text, const std::string& try_it) {
  struct Fix {
    std::string_view text;
    const char* fix;
  };
  constexpr Fix kFixes[] = {
      {"Too many authentication failures",
       "the SSH agent holds more keys than this server lets a client try (ssh-add -l lists them): "
       "name the right one in ~/.ssh/config: IdentityFile KEY and IdentitiesOnly yes"},
      {"No user exists for uid",
       "OpenSSH needs an account name for this uid: add the uid to /etc/passwd"},
      {"Bad configuration option", "correct or remove that line of the ssh configuration"},
      {"Bad owner or permissions", "make sure that you own that file, and chmod 600 it"},
  };
  for (const Fix& fix_row : kFixes)
    if (error_text.find(fix_row.text) != std::string_view::npos) return fix_row.fix;
  return try_it;
}

std::string error_line_of(std::string_view error_text) {
  std::istringstream lines{std::string(error_text)};
  std::string best;
  for (std::string line; std::getline(lines, line);) {
    if (classify_client_failure(line) != LinkFailure::kBroken) best = last_line(line);
  }
  return best.empty() ? last_line(error_text) : best;
}

}  // namespace ivy
