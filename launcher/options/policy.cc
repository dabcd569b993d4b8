// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/policy.h"

#include <algorithm>

#include "launcher/options/option_values.h"
#include "launcher/options/toml_file.h"
#include "launcher/options/transport_kind.h"
#include "proto/contract/edit_distance.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::string_view kPolicyKeys[] = {"transports", "interfaces", "ports", "forbid"};
constexpr char kAsk[] = "leave it out, or ask the administrator of this host";

Result<void> take_transports(const TomlEntry& entry, Policy& policy) {
  const std::vector<std::string> words = policy_words();
  for (const std::string& transport : entry.values)
    if (std::find(words.begin(), words.end(), transport) == words.end())
      return usage_error(entry.origin + ": \"" + transport + "\" is not a transport",
                         "the transports are " + joined(words, ", "));
  policy.transports = entry.values;
  return {};
}

Result<void> take_forbidden(const TomlEntry& entry, Policy& policy) {
  for (const std::string& flag : entry.values) {
    const std::optional<OptionSpelling> spelling = find_option("--" + flag);
    if (!spelling)
      return usage_error(entry.origin + ": \"" + flag + "\" is not a flag of ivyrun",
                         "write flags without their dashes: ivyrun --help all");
    policy.forbidden.emplace_back(spelling->entry->name, entry.origin);
  }
  return {};
}

Result<void> take_policy_key(const TomlEntry& entry, Policy& policy) {
  if (entry.key == "transports") return take_transports(entry, policy);
  if (entry.key == "forbid") return take_forbidden(entry, policy);
  if (entry.key == "interfaces") {
    policy.interfaces = entry.values;
    return {};
  }
  if (entry.key == "ports") {
    const auto range = parse_port_range(entry.values.empty() ? "" : entry.values.front());
    if (!range.ok()) return range.error().context(entry.origin + ": ports");
    policy.ports = *range;
    return {};
  }
  return unknown_toml_key(entry, nearest_word(entry.key, kPolicyKeys),
                          "known keys: " + joined(kPolicyKeys, ", "));
}

}  // namespace

bool Policy::allows(const std::string& transport) const {
  return !transports ||
         std::find(transports->begin(), transports->end(), transport) != transports->end();
}

Result<Policy> parse_policy(const std::string& text, const std::string& path) {
  Policy policy;
  policy.path = path;
  for (const TomlEntry& entry : IVY_TRY(parse_toml(text, path)))
    IVY_CHECK(take_policy_key(entry, policy));
  return policy;
}

Result<std::optional<Policy>> read_policy(const std::string& path) {
  const std::optional<std::string> text = IVY_TRY(read_settings_file(path, FileOwner::kRoot));
  if (!text) return std::optional<Policy>{};
  return std::optional<Policy>(IVY_TRY(parse_policy(*text, path)));
}

Result<void> check_flags(const Policy& policy, const Scanned& scanned) {
  for (const Setting& setting : scanned.settings)
    for (const auto& [flag, origin] : policy.forbidden)
      if (setting.entry->name == flag)
        return Error{Code::kPermissionDenied,
                     "the policy of this host (" + origin + ") forbids " + setting.spelling, kAsk};
  return {};
}

Error forbidden(const Policy& policy, const std::string& what, const std::string& allowed) {
  return Error{Code::kPermissionDenied, "the policy of this host (" + policy.path + ") " + what,
               allowed.empty() ? kAsk : allowed};
}

}  // namespace ivy
