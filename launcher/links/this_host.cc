// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/this_host.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <pwd.h>
#include <strings.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

#include "launcher/options/hosts.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxHostsFileBytes = 16u << 20;

bool equal_names(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view first_label(std::string_view name) { return name.substr(0, name.find('.')); }

// Returns an address in the spelling of host_text(); empty if the text is not an address.
std::string canonical(const std::string& text) {
  const SocketAddress address = parse_address(text.substr(0, text.find('%')), 0);
  return address.is_valid() ? host_text(address.storage) : "";
}

bool on_own_interface(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && host_text(entry->ifa_addr) == address) return true;
  }
  return false;
}

bool resolves_to_this_host(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (is_own_address(host_text(entry->ai_addr))) return true;
  }
  return false;
}

// Returns the names that /etc/hosts gives to this machine. The file is read once: it may have
// thousands of lines, for thousands of hosts to compare.
const std::set<std::string>& own_names_in_hosts_file() {
  static const std::set<std::string> names =
      own_names(read_file("/etc/hosts", kMaxHostsFileBytes).value_or(""), is_own_address);
  return names;
}

}  // namespace

std::set<std::string> own_names(std::string_view hosts_file,
                                const std::function<bool(const std::string&)>& is_own) {
  std::set<std::string> names;
  std::map<std::string, bool, std::less<>> known;  // Several lines may have the same address.
  while (!hosts_file.empty()) {
    const std::string_view line = take_part(hosts_file, '\n');
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const auto [entry, is_new] = known.try_emplace(std::string(words.front()), false);
    if (is_new) entry->second = is_own(entry->first);
    if (!entry->second) continue;
    for (std::size_t i = 1; i < words.size(); ++i) names.insert(lower_case(words[i]));
  }
  return names;
}

bool is_own_address(const std::string& numeric) {
  const std::string address = canonical(numeric);
  if (address.empty()) return false;
  return is_loopback(address) || on_own_interface(address);
}

bool is_own_name(const std::string& name) {
  if (equal_names(name, "localhost")) return true;
  const std::string own = own_host_name();
  if (own.empty()) return false;
  if (equal_names(name, own)) return true;
  if (own_names_in_hosts_file().contains(lower_case(name))) return true;
  // node1 and node1.cluster may be one machine, or two machines in two domains: only their
  // addresses can tell. No other name is looked up here, because a slow name server must not delay
  // hosts that are not this one.
  if (!equal_names(first_label(name), first_label(own))) return false;
  // Each name is resolved once, also if that fails: a redial must not wait for a name server. The
  // mutex is held meanwhile, so that a second thread waits for the same answer.
  static std::mutex mutex;
  static std::map<std::string, bool> answers;
  const std::lock_guard lock(mutex);
  const auto [answer, is_new] = answers.try_emplace(name, false);
  if (is_new) answer->second = resolves_to_this_host(name);
  return answer->second;
}

const std::string& own_account() {
  static const std::string name = [] {
    const passwd* const own = getpwuid(geteuid());
    return own == nullptr ? std::string() : std::string(own->pw_name);
  }();
  return name;
}

bool is_this_host(const Host& host) {
  if (host.fake) return true;
  // With an explicit port the user means a particular sshd at this address, which may be that of a
  // container or of a tunnel.
  if (host.port != 0 || (!host.user.empty() && host.user != own_account())) return false;
  return is_own_address(host.name) || is_own_name(host.name);
}

}  // namespace ivy
