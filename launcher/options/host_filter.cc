// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/host_filter.h"

#include <algorithm>
#include <map>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// More than the slots of the largest host.
constexpr int kMaxDevice = 8191;

bool is_numeric(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789-") == std::string_view::npos;
}

// Parses a number or a range: "3" or "0-3".
Result<void> add_devices(std::string_view text, std::vector<int>& devices) {
  const std::size_t dash = text.find('-');
  const Result<int> first = parse_number(text.substr(0, dash), 0, kMaxDevice);
  const Result<int> last =
      dash == std::string_view::npos ? first : parse_number(text.substr(dash + 1), 0, kMaxDevice);
  if (!first.ok() || !last.ok() || *last < *first)
    return usage_error(in_quotes(text) + " is not a slot number or a range of slots",
                       "slots are numbered from 0: 'node01:0,2' or 'node01:0-3'");
  for (int device = *first; device <= *last; ++device)
    if (std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  return {};
}

// Returns the position of the colon before the numbers. An address in brackets contains colons
// itself.
std::size_t colon_of(std::string_view text) {
  const std::size_t bracket = text.rfind(']');
  return text.find(':', bracket == std::string_view::npos ? 0 : bracket);
}

Result<HostPick> parse_pick(std::string_view text) {
  HostPick pick;
  const std::size_t colon = colon_of(text);
  for (const Host& host : IVY_TRY(parse_host_list(text.substr(0, colon), "hosts")))
    pick.names.push_back(host.name);
  if (colon != std::string_view::npos) IVY_CHECK(add_devices(text.substr(colon + 1), pick.devices));
  return pick;
}

// The selected numbers by name of the host; none means the whole host.
using Picked = std::map<std::string, std::vector<int>>;

Result<Picked> by_name(const std::vector<HostPick>& picks, const std::vector<Host>& hosts) {
  Picked picked;
  std::vector<std::string> unknown;
  for (const HostPick& pick : picks) {
    for (const std::string& name : pick.names) {
      const auto has_name = [&](const Host& host) { return host.name == name; };
      if (std::none_of(hosts.begin(), hosts.end(), has_name)) unknown.push_back(name);
      const auto [found, is_new] = picked.try_emplace(name, pick.devices);
      if (is_new) continue;
      // A whole host includes all of its numbers.
      if (pick.devices.empty() || found->second.empty())
        found->second.clear();
      else
        found->second.insert(found->second.end(), pick.devices.begin(), pick.devices.end());
    }
  }
  if (unknown.empty()) return picked;
  std::vector<std::string> known;
  for (const Host& host : hosts) known.push_back(host.name);
  return Error{Code::kNotFound,
               fold_host_names(unknown) + (unknown.size() == 1 ? " is" : " are") +
                   " not in the list of hosts (" + fold_host_names(known) + ")",
               "write the names as they appear in the list of hosts"};
}

Result<void> check_devices(const Host& host, const std::vector<int>& devices) {
  if (!host.slots) return {};
  for (const int device : devices)
    if (device >= *host.slots)
      return usage_error(host.name + " has no slot " + std::to_string(device) + ": it has " +
                             counted(static_cast<std::size_t>(*host.slots), "slot"),
                         "slots are numbered from 0");
  return {};
}

void select_devices(std::vector<int> devices, Host& host) {
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  host.slots = static_cast<int>(devices.size());
  host.only_devices = std::move(devices);
}

}  // namespace

Result<std::vector<HostPick>> parse_host_filter(std::string_view text) {
  std::vector<HostPick> picks;
  const bool ends_open = text.empty() || text.back() == '@';
  while (!text.empty()) {
    const std::string_view part = take_part(text, '@');
    bool may_continue = false;
    for (const TextPiece& piece : cut_at_commas(TextPiece{part}, true)) {
      if (may_continue && is_numeric(piece.text)) {
        IVY_CHECK(add_devices(piece.text, picks.back().devices));
        continue;
      }
      picks.push_back(IVY_TRY(parse_pick(piece.text)));
      may_continue = !picks.back().devices.empty();
    }
  }
  if (ends_open)
    return usage_error("a host's name is missing", "such as 'node01@node02:0,2' or 'node[01-08]'");
  return picks;
}

Result<std::vector<Host>> included_hosts(const std::vector<HostPick>& picks,
                                         const std::vector<Host>& hosts) {
  const Picked picked = IVY_TRY(by_name(picks, hosts));
  std::vector<Host> kept;
  for (const Host& host : hosts) {
    const auto found = picked.find(host.name);
    if (found == picked.end()) continue;
    kept.push_back(host);
    IVY_CHECK(check_devices(host, found->second));
    if (!found->second.empty()) select_devices(found->second, kept.back());
  }
  return kept;
}

Result<std::vector<Host>> hosts_without(const std::vector<HostPick>& picks,
                                        const std::vector<Host>& hosts) {
  const Picked picked = IVY_TRY(by_name(picks, hosts));
  std::vector<Host> kept;
  for (const Host& host : hosts) {
    const auto found = picked.find(host.name);
    if (found != picked.end() && found->second.empty()) continue;
    kept.push_back(host);
    if (found == picked.end()) continue;
    IVY_CHECK(check_devices(host, found->second));
    if (!host.slots) {
      kept.back().excluded_devices = found->second;
      continue;
    }
    std::vector<int> left;
    for (int device = 0; device < *host.slots; ++device)
      if (std::find(found->second.begin(), found->second.end(), device) == found->second.end())
        left.push_back(device);
    if (left.empty())
      kept.pop_back();
    else
      select_devices(std::move(left), kept.back());
  }
  if (kept.empty()) return usage_error("the filter leaves no hosts", "exclude fewer hosts");
  return kept;
}

}  // namespace ivy
