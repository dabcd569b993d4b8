// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/ssh/ssh_settings.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "proto/contract/text.h"

namespace ivy {
namespace {

bool contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// True for keywords that change neither the host that is reached, nor the user, nor how the two
// prove who they are.
bool is_harmless(std::string_view keyword) {
  return contains(
      {"addkeystoagent", "batchmode", "checkhostip", "clearallforwardings", "compression",
       "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist",
       "dynamicforward", "enablesshkeysign", "escapechar", "exitonforwardfailure",
       "fingerprinthash", "forwardagent", "forwardx11", "forwardx11timeout", "forwardx11trusted",
       "gatewayports", "gssapidelegatecredentials", "gssapikeyexchange", "hashknownhosts", "ipqos",
       "kbdinteractiveauthentication", "challengeresponseauthentication", "localforward",
       "loglevel", "logverbose", "numberofpasswordprompts", "passwordauthentication",
       "permitlocalcommand", "rekeylimit", "remoteforward", "requesttty", "sendenv",
       "serveralivecountmax", "serveraliveinterval", "streamlocalbindmask", "streamlocalbindunlink",
       "syslogfacility", "tcpkeepalive", "updatehostkeys", "visualhostkey", "xauthlocation",
       // Both only add methods of logging in. If one of them is needed, libssh's keys are rejected,
       // and the client takes over.
       "gssapiauthentication", "hostbasedauthentication"},
      keyword);
}

// Settings that replace ivyrun's command or its streams, with the option that undoes each. Older
// clients do not know all of them, and would reject an unknown one.
struct CommandSetting {
  std::string_view keyword;
  std::string_view option;
};
constexpr CommandSetting kCommandSettings[] = {
    {"remotecommand", "RemoteCommand=none"},
    {"sessiontype", "SessionType=default"},
    {"stdinnull", "StdinNull=no"},
    {"forkafterauthentication", "ForkAfterAuthentication=no"}};

bool is_command_setting(std::string_view keyword) {
  return std::any_of(std::begin(kCommandSettings), std::end(kCommandSettings),
                     [&](const CommandSetting& setting) { return setting.keyword == keyword; });
}

// True for keywords that ssh_target() passes on to libssh.
bool is_passed_on(std::string_view keyword) {
  return contains({"host", "hostname", "user", "port", "identityfile", "identityagent",
                   "userknownhostsfile", "stricthostkeychecking", "pubkeyauthentication"},
                  keyword);
}

// The settings of a host that differ from OpenSSH's defaults.
class Choices {
 public:
  Choices(const SshSettings& settings, const SshSettings& defaults) {
    for (const auto& [keyword, values] : settings) {
      const auto usual = defaults.find(keyword);
      if (usual == defaults.end() || usual->second != values) chosen_[keyword] = values;
    }
  }
  // Returns nullopt if the setting has its default value.
  std::optional<std::string> value(std::string_view keyword) const {
    const auto found = chosen_.find(keyword);
    return found == chosen_.end() ? std::nullopt : std::optional(found->second.front());
  }
  std::vector<std::string> values(std::string_view keyword) const {
    const auto found = chosen_.find(keyword);
    return found == chosen_.end() ? std::vector<std::string>{} : found->second;
  }
  // Returns the first setting that only the client can follow; empty: none.
  std::string for_the_client() const {
    for (const auto& [keyword, values] : chosen_) {
      const bool is_off = values.size() == 1 && contains({"no", "none", "false"}, values.front());
      const bool is_for_libssh =
          is_harmless(keyword) || is_passed_on(keyword) || is_command_setting(keyword);
      if (!is_off && !is_for_libssh) return keyword;
    }
    return {};
  }

 private:
  SshSettings chosen_;
};

// Expands "~/x", "%d/x" and "%%". Returns nullopt if another escape is used.
std::optional<std::string> expand(const std::string& path, const SshUser& user) {
  std::string result;
  std::size_t i = 0;
  if (path == "~" || path.starts_with("~/")) {
    result = user.home;
    i = 1;
  } else if (path.starts_with('~') || path.find("${") != std::string::npos) {
    return std::nullopt;
  }
  for (; i < path.size(); ++i) {
    if (path[i] != '%') {
      result += path[i];
      continue;
    }
    const char escape = i + 1 < path.size() ? path[++i] : '\0';
    if (escape == '%') {
      result += '%';
    } else if (escape == 'd') {
      result += user.home;
    } else if (escape == 'u') {
      result += user.name;
    } else {
      return std::nullopt;
    }
  }
  return result.starts_with('/') || result == "none" ? std::optional(result) : std::nullopt;
}

void need_client(SshTarget& target, const std::string& because) {
  if (target.client_because.empty()) target.client_because = because;
}

void set_identities(SshTarget& target, const Choices& choices, const SshUser& user) {
  const std::vector<std::string> chosen = choices.values("identityfile");
  if (chosen.empty()) {
    for (const char* const name : {"id_ed25519", "id_ecdsa", "id_rsa"}) {
      target.identities.push_back(user.home + "/.ssh/" + name);
    }
  }
  target.names_identities = !chosen.empty();
  for (const std::string& identity : chosen) {
    const std::optional<std::string> path = expand(identity, user);
    if (!path) need_client(target, "IdentityFile " + identity);
    if (path && *path != "none") target.identities.push_back(*path);
  }
  const std::optional<std::string> agent = choices.value("identityagent");
  if (!agent || lower_case(*agent) == "ssh_auth_sock") return;
  const std::optional<std::string> path = expand(*agent, user);
  if (!path) need_client(target, "IdentityAgent");
  target.identity_agent = path.value_or("");
}

void set_host_key_rules(SshTarget& target, const Choices& choices, const SshUser& user) {
  target.known_hosts = user.home + "/.ssh/known_hosts";
  if (const std::optional<std::string> files = choices.value("userknownhostsfile")) {
    const bool is_one = files->find_first_of(" \t\"") == std::string::npos;
    const std::optional<std::string> path = is_one ? expand(*files, user) : std::nullopt;
    if (!path || *path == "none") need_client(target, "UserKnownHostsFile");
    target.known_hosts = path.value_or(target.known_hosts);
  }
  const std::string strict = choices.value("stricthostkeychecking").value_or("ask");
  target.may_prompt = strict == "ask";
  if (!contains({"ask", "yes", "true"}, strict)) need_client(target, "StrictHostKeyChecking");
}

}  // namespace

bool is_ssh_program(const std::string& program) {
  return program.substr(program.rfind('/') + 1) == "ssh";
}

SshSettings parse_ssh_settings(std::string_view text) {
  SshSettings settings;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find(' ');
    if (end != std::string::npos) settings[line.substr(0, end)].push_back(line.substr(end + 1));
  }
  return settings;
}

SshTarget ssh_target(const std::string& typed, const SshSettings& settings,
                     const SshSettings& defaults, const SshUser& user) {
  const Choices choices(settings, defaults);
  SshTarget target;
  target.client_because = choices.for_the_client();
  target.host_name = choices.value("hostname").value_or(typed);
  // OpenSSH prints the name in lower case, so the spelling as typed is kept.
  if (target.host_name == lower_case(typed)) target.host_name = typed;
  target.user = choices.value("user").value_or("");
  target.control_path = choices.value("controlpath").value_or("");
  if (target.control_path == "none") target.control_path.clear();
  const std::string port = choices.value("port").value_or("22");
  std::from_chars(port.data(), port.data() + port.size(), target.port);
  target.pubkey = !contains({"no", "false"}, choices.value("pubkeyauthentication").value_or("yes"));
  for (const CommandSetting& setting : kCommandSettings)
    if (choices.value(setting.keyword)) target.client_options.emplace_back(setting.option);
  set_identities(target, choices, user);
  set_host_key_rules(target, choices, user);
  return target;
}

bool may_configure(std::string_view text, bool (*includes_nothing)(const std::string& pattern)) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string keyword, value;
    words >> keyword >> value;
    keyword = lower_case(keyword);
    const bool is_empty = keyword.empty() || keyword.front() == '#';
    const bool is_usual = contains({"sendenv", "hashknownhosts", "gssapiauthentication"}, keyword);
    const bool is_for_all = keyword == "host" && value == "*";
    const bool is_empty_include = keyword == "include" && words.eof() && includes_nothing(value);
    if (!is_empty && !is_usual && !is_for_all && !is_empty_include) return true;
  }
  return false;
}

bool known_hosts_needs_client(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::size_t first = line.find_first_not_of(" \t");
    if (first != std::string_view::npos && line[first] == '@') return true;
    begin = end + 1;
  }
  return false;
}

std::vector<std::string> known_hosts_files(const SshTarget& target, const SshUser& user) {
  return {target.known_hosts, user.home + "/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts",
          "/etc/ssh/ssh_known_hosts2"};
}

}  // namespace ivy
