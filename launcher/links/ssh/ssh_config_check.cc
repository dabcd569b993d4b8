#include "launcher/links/ssh/ssh_config_check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <sstream>

namespace ivy {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

bool contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Keywords that change nothing about who is reached, who we are, or how that is proved.
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
       // Both only add ways to log in: where they are needed our keys are refused, and
       // then the client takes over anyway.
       "gssapiauthentication", "hostbasedauthentication"},
      keyword);
}

struct Line {
  std::string keyword;  // Lower case.
  std::string value;    // Without surrounding quotes.
};

std::optional<Line> parse_line(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\f";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos || text[begin] == '#') return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
  const std::size_t end = text.find_first_of(" \t=");
  Line line;
  line.keyword = lower(text.substr(0, end));
  if (end == std::string_view::npos) return line;
  std::string_view value = text.substr(end);
  const std::size_t start = value.find_first_not_of(" \t=");
  value = start == std::string_view::npos ? std::string_view{} : value.substr(start);
  if (value.size() >= 2 && value.front() == '"' && value.find('"', 1) == value.size() - 1) {
    value = value.substr(1, value.size() - 2);
  }
  line.value = std::string(value);
  return line;
}

bool matches_pattern(std::string_view text, std::string_view pattern) {
  // The classic two-finger match: on a mismatch go back to the last '*' and let it take one more.
  std::size_t t = 0, p = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Values as they are first met: the first one wins, except for IdentityFile.
struct Found {
  std::optional<std::string> host_name, user, port, known_hosts, agent, strict, pubkey;
  std::vector<std::string> identities;
  std::string client_because;
};

void take_first(std::optional<std::string>& slot, const std::string& value) {
  if (!slot) slot = value;
}

void apply(const Line& line, Found& found) {
  const std::string& keyword = line.keyword;
  if (keyword == "hostname") return take_first(found.host_name, line.value);
  if (keyword == "user") return take_first(found.user, line.value);
  if (keyword == "port") return take_first(found.port, line.value);
  if (keyword == "userknownhostsfile") return take_first(found.known_hosts, line.value);
  if (keyword == "identityagent") return take_first(found.agent, line.value);
  if (keyword == "stricthostkeychecking") return take_first(found.strict, lower(line.value));
  if (keyword == "pubkeyauthentication") return take_first(found.pubkey, lower(line.value));
  if (keyword == "identityfile") return found.identities.push_back(line.value);
  const std::string value = lower(line.value);
  const bool is_off = value == "no" || value == "none";
  if (is_harmless(keyword) || is_off || !found.client_because.empty()) return;
  found.client_because = line.keyword;
}

// Conditions may run programs and look at the final name: the client knows how.
bool match_applies(const std::string& conditions, Found& found) {
  if (lower(conditions) == "all") return true;
  if (found.client_because.empty()) found.client_because = "Match";
  return false;
}

void scan(const std::string& config, const std::string& host, Found& found) {
  std::istringstream lines(config);
  // What an included file says applies only where its Include line does, and ends with the file.
  std::vector<bool> outer{true};
  bool applies = true;
  for (std::string text; std::getline(lines, text);) {
    if (text == kIncludeBegins) {
      outer.push_back(applies);
      continue;
    }
    if (text == kIncludeEnds && outer.size() > 1) {
      applies = outer.back();
      outer.pop_back();
      continue;
    }
    const std::optional<Line> line = parse_line(text);
    if (!line) continue;
    if (line->keyword == "host") {
      applies = outer.back() && matches_ssh_pattern_list(host, line->value);
    } else if (line->keyword == "match") {
      applies = outer.back() && match_applies(line->value, found);
    } else if (applies) {
      apply(*line, found);
    }
  }
}

// "~/x", "%d/x", "%%"...; nothing when another escape is used.
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

void set_host_and_port(SshTarget& target, const Found& found, const SshTyped& typed) {
  target.host_name = found.host_name.value_or(typed.host);
  if (target.host_name == "%h") target.host_name = typed.host;
  if (target.host_name.find('%') != std::string::npos && found.host_name) {
    need_client(target, "HostName with %");
  }
  target.port = typed.port != 0 ? typed.port : std::uint16_t{22};
  if (typed.port != 0 || !found.port) return;
  const char* const end = found.port->data() + found.port->size();
  const auto parsed = std::from_chars(found.port->data(), end, target.port);
  if (parsed.ec != std::errc{} || parsed.ptr != end || target.port == 0) {
    target.port = 22;
    need_client(target, "Port");
  }
}

void set_identities(SshTarget& target, const Found& found, const SshUser& user) {
  if (found.identities.empty()) {
    for (const char* const name : {"id_ed25519", "id_ecdsa", "id_rsa"}) {
      target.identities.push_back(user.home + "/.ssh/" + name);
    }
  }
  for (const std::string& identity : found.identities) {
    const std::optional<std::string> path = expand(identity, user);
    if (!path) need_client(target, "IdentityFile " + identity);
    if (path && *path != "none") target.identities.push_back(*path);
  }
  if (!found.agent || lower(*found.agent) == "ssh_auth_sock") return;
  const std::optional<std::string> agent = expand(*found.agent, user);
  if (!agent) need_client(target, "IdentityAgent");
  target.identity_agent = agent.value_or("");
}

void set_host_key_rules(SshTarget& target, const Found& found, const SshUser& user) {
  target.known_hosts = user.home + "/.ssh/known_hosts";
  if (found.known_hosts) {
    const bool is_one = found.known_hosts->find_first_of(" \t\"") == std::string::npos;
    const std::optional<std::string> path =
        is_one ? expand(*found.known_hosts, user) : std::nullopt;
    if (!path || *path == "none") need_client(target, "UserKnownHostsFile");
    target.known_hosts = path.value_or(target.known_hosts);
  }
  const std::string strict = found.strict.value_or("ask");
  target.may_ask = strict == "ask";
  if (strict != "ask" && strict != "yes") need_client(target, "StrictHostKeyChecking " + strict);
}

}  // namespace

bool matches_ssh_pattern_list(std::string_view host, std::string_view patterns) {
  const std::string name = lower(host);
  bool found = false;
  std::string list(patterns);
  std::replace(list.begin(), list.end(), ',', ' ');
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    word.erase(std::remove(word.begin(), word.end(), '"'), word.end());
    const bool negated = word.starts_with('!');
    if (!matches_pattern(name, lower(std::string_view(word).substr(negated ? 1 : 0)))) continue;
    if (negated) return false;
    found = true;
  }
  return found;
}

SshTarget ssh_target(const SshTyped& typed, const std::vector<std::string>& configs,
                     const SshUser& user) {
  Found found;
  for (const std::string& config : configs) scan(config, typed.host, found);
  SshTarget target;
  target.client_because = found.client_because;
  target.user = !typed.user.empty() ? typed.user : found.user.value_or("");
  target.pubkey = found.pubkey.value_or("yes") != "no";
  set_host_and_port(target, found, typed);
  set_identities(target, found, user);
  set_host_key_rules(target, found, user);
  return target;
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
