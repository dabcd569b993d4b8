// SPDX-License-Identifier: Apache-2.0
// `ivyctl config`: shows the flags that have a default for this user on this host, from the
// variables IVY_* and PET_* (torchrun's) and from the config files of the user and the system. By
// default, prints them in the form of a config file (print_as_file()). With --origin or --json,
// prints a table with the source of each, which includes the rules of the administrator's policy
// file (rows_of()).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_table.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/options/config_files.h"
#include "launcher/options/policy.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

struct EffectiveConfig {
  ConfigPaths paths;
  Scanned defaults;              // The flags that have a default.
  std::optional<Policy> policy;  // Empty if the host has no policy file.
};

Result<EffectiveConfig> effective_config(const CtlOptions& options) {
  Environment environment = environment_of(environ);
  if (!options.config_file.empty()) set_variable(environment, "IVY_CONFIG", options.config_file);
  EffectiveConfig config;
  config.paths = config_paths(environment);
  IVY_CHECK(add_all_defaults(environment, config.defaults));
  config.policy = IVY_TRY(read_policy(config.paths.policy));
  // Parse a command line with these defaults only to reject wrong values; "true" is its program.
  IVY_TRY(parse_command_line({"true"}, environment));
  return config;
}

// Returns one row. The table shows at most 60 characters of a value; JSON has all of it.
ListRow config_row(const std::string& flag, const std::string& value, const std::string& origin) {
  return {{flag, table_cell(value, 60), origin},
          {{"flag", json_text(flag)}, {"value", json_text(value)}, {"origin", json_text(origin)}}};
}

std::vector<ListRow> rows_of(const EffectiveConfig& config) {
  std::vector<ListRow> rows;
  for (const Setting& setting : config.defaults.settings)
    rows.push_back(config_row(std::string(setting.entry->name), setting.value, setting.origin));
  for (const SwitchedOff& off : config.defaults.switched_off)
    rows.push_back(config_row(std::string(off.entry->name), "false", off.origin));
  for (const NamedCommand& transport : config.defaults.transports)
    rows.push_back(config_row("transports: " + transport.name, transport.text, transport.origin));
  if (!config.policy) return rows;
  const Policy& policy = *config.policy;
  if (policy.transports)
    rows.push_back(config_row("policy: transports", joined(*policy.transports, ", "), policy.path));
  if (!policy.interfaces.empty())
    rows.push_back(config_row("policy: interfaces", joined(policy.interfaces, ", "), policy.path));
  if (policy.ports)
    rows.push_back(
        config_row("policy: ports",
                   std::to_string(policy.ports->first) + "-" + std::to_string(policy.ports->second),
                   policy.path));
  for (const auto& [flag, origin] : policy.forbidden)
    rows.push_back(config_row("policy: forbids", flag, origin));
  return rows;
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    // Bytes of UTF-8 characters stay as they are.
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && is_control(std::string_view(&c, 1))) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(byte));
      out += escape;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

struct FlagValues {
  const OptionEntry* flag;
  std::vector<std::string> values;
};

// Returns the flags in the order of their first values. --config is left out, because a config file
// must not name another one.
std::vector<FlagValues> grouped_by_flag(const std::vector<Setting>& settings) {
  std::vector<FlagValues> groups;
  for (const Setting& setting : settings) {
    if (setting.entry->name == "config") continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const FlagValues& other) { return other.flag == setting.entry; });
    if (group == groups.end()) group = groups.insert(groups.end(), FlagValues{setting.entry, {}});
    group->values.push_back(setting.value);
  }
  return groups;
}

std::string toml_value(const FlagValues& group) {
  // A switch can have another value than "true": that of its joined form, as in --dry-run=json.
  const bool is_switch = group.flag->value.empty();
  if (is_switch && group.values.front() == "true") return "true";
  std::vector<std::string> strings;
  for (const std::string& value : group.values) strings.push_back(toml_string(value));
  return strings.size() == 1 ? strings.front() : "[" + joined(strings, ", ") + "]";
}

// Prints the defaults and transports as a config file. A flag with several values becomes a list.
void print_as_file(const Scanned& defaults) {
  std::string text;
  for (const FlagValues& group : grouped_by_flag(defaults.settings))
    text += std::string(group.flag->name) + " = " + toml_value(group) + "\n";
  for (const SwitchedOff& off : defaults.switched_off)
    text += std::string(off.entry->name) + " = false\n";
  std::set<std::string> names;
  for (const NamedCommand& transport : defaults.transports) {
    // The first definition of a name counts.
    if (!names.insert(transport.name).second) continue;
    if (names.size() == 1) text += "[transports]\n";
    text += toml_string(transport.name) + " = " + toml_string(transport.text) + "\n";
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace

int ctl_config(const CtlOptions& options) {
  const Result<EffectiveConfig> config = effective_config(options);
  if (!config.ok()) return ctl_fail(config.error());
  if (options.origin || options.json) {
    const std::vector<ListRow> rows = rows_of(*config);
    print_list({"FLAG", "VALUE", "ORIGIN"}, rows, options.json);
    // Not reached with --config FILE, which is itself a row.
    if (rows.empty() && !options.json) {
      const ConfigPaths& paths = config->paths;
      ctl_note("no flag has a default: neither IVY_*, PET_*" +
               (paths.user.empty() ? "" : ", " + paths.user) + " nor " + paths.system +
               " sets one");
    }
  } else {
    print_as_file(config->defaults);
  }
  return std::fflush(stdout) == 0 ? 0 : kCtlFailed;
}

}  // namespace ivy
