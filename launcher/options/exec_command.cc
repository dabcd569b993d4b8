// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/exec_command.h"

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kHost = "{host}";
constexpr std::string_view kUser = "{user}";
constexpr std::string_view kPort = "{port}";
// A single word, so that it also survives tools that join their arguments for a remote shell, as
// ssh does.
constexpr const char* kShell = "/bin/sh";

bool contains(const std::vector<std::string>& words, std::string_view placeholder) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word.find(placeholder) != std::string::npos;
  });
}

// Replaces the placeholders in one pass, so that replaced text is not searched again.
std::string filled_in(std::string_view word, std::uint16_t default_port, const Host& host) {
  const std::uint16_t port = host.port != 0 ? host.port : default_port;
  const std::array<std::pair<std::string_view, std::string>, 3> values = {
      {{kHost, host.name}, {kUser, host.user}, {kPort, std::to_string(port)}}};
  std::string text;
  while (!word.empty()) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) {
      return word.starts_with(value.first);
    });
    text += found == values.end() ? std::string(word.substr(0, 1)) : found->second;
    word.remove_prefix(found == values.end() ? 1 : found->first.size());
  }
  return text;
}

Error mismatch(const Host& host, const std::string& what, const std::string& fix) {
  return usage_error((host.origin.empty() ? "" : host.origin + ": ") + what, fix);
}

}  // namespace

const std::vector<NamedCommand>& own_commands() {
  static const std::vector<NamedCommand> commands = {
      {"kubectl", "kubectl exec -i {host} --", ""},
      {"docker", "docker exec -i {host}", ""},
      {"podman", "podman exec -i {host}", ""},
  };
  return commands;
}

Result<std::vector<std::string>> parse_exec(std::string_view text) {
  std::vector<std::string> words = IVY_TRY(quoted_words(text));
  if (contains(words, kHost)) return words;
  return usage_error(in_quotes(text) + " does not contain {host}",
                     "write {host} where the command expects the host's name, such as 'kubectl "
                     "exec -i {host} --'");
}

Result<void> check_exec_hosts(const std::vector<std::string>& command, std::uint16_t default_port,
                              const std::vector<Host>& hosts) {
  const std::string text = joined(command, " ");
  if (hosts.empty())
    return usage_error("no hosts are given for the command " + text,
                       "name them: -H NAME,NAME or --hostfile FILE; for this machine use "
                       "--transport local");
  const bool wants_user = contains(command, kUser), wants_port = contains(command, kPort);
  for (const Host& host : hosts) {
    if (host.fake) continue;
    if (!host.user.empty() && !wants_user)
      return mismatch(host,
                      host.user + "@" + host.name + ": the command " + text + " has no {user}",
                      "write {user} in the command, or only the host's name");
    if (host.port != 0 && !wants_port)
      return mismatch(host,
                      "port " + std::to_string(host.port) + " of " + host.name + ": the command " +
                          text + " has no {port}",
                      "write {port} in the command, or leave the port out");
    if (host.user.empty() && wants_user)
      return mismatch(host, host.name + " has no user for {user} in the command " + text,
                      "write USER@" + host.name);
    if (host.port == 0 && default_port == 0 && wants_port)
      return mismatch(host, host.name + " has no port for {port} in the command " + text,
                      "write " + host.name + ":port=N, or --ssh-port N");
  }
  return {};
}

std::vector<std::string> words_for_host(const std::vector<std::string>& command,
                                        std::uint16_t default_port, const Host& host) {
  std::vector<std::string> words;
  for (const std::string& word : command) words.push_back(filled_in(word, default_port, host));
  words.emplace_back(kShell);
  return words;
}

}  // namespace ivy
