// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/config_files.h"

#include <algorithm>
#include <iterator>

#include "launcher/options/exec_command.h"
#include "launcher/options/option_values.h"
#include "launcher/options/toml_file.h"
#include "launcher/options/transport_kind.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Flags that would be pointless as defaults, or that exit immediately.
constexpr std::string_view kNeverInFiles[] = {"config", "help", "version"};
// Flags that may be repeated, so a file may contain a list of values.
constexpr std::string_view kLists[] = {"hosts", "export", "env-file", "device-env"};

// The table of commands that reach hosts.
constexpr std::string_view kTransportTable = "transports";

template <class Names>
bool is_among(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string dashed(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

std::string without_dashes(const std::string& flag) {
  return flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
}

Result<OptionSpelling> flag_of(const TomlEntry& entry) {
  const std::string name = dashed(entry.key);
  const std::optional<OptionSpelling> spelling = find_option("--" + name);
  if (!spelling)
    return unknown_toml_key(entry, without_dashes(nearest_option("--" + name)),
                            "keys are ivyrun's flags without the dashes: ivyrun --help all");
  if (is_among(kNeverInFiles, spelling->entry->name))
    return Error{Code::kInvalidArgument,
                 entry.origin + ": " + entry.key + " is not allowed in a config file",
                 "write it on the command line"};
  return *spelling;
}

Error wrong_kind(const TomlEntry& entry, const std::string& wanted) {
  return Error{Code::kInvalidArgument, entry.origin + ": " + entry.key + " is " + wanted,
               "ivyrun --help " + dashed(entry.key)};
}

// Adds the settings of one line. A switch that is off only keeps later files from turning it on.
Result<void> add_entry(const TomlEntry& entry, const OptionSpelling& spelling, Scanned& scanned) {
  Setting setting{spelling.entry, "true", entry.key + " (" + entry.origin + ")"};
  setting.origin = entry.origin;
  const bool is_switch = !spelling.takes_value();
  if (is_switch && spelling.entry->kind == OptionKind::kHonoured) {
    const bool has_text = entry.kind != TomlEntry::Kind::kList &&
                          is_joinable(spelling.entry->joined_value, entry.values.front());
    if (entry.kind != TomlEntry::Kind::kSwitch && !has_text)
      return wrong_kind(entry, "a switch: write true or false");
    if (entry.values.front() == "false") {
      scanned.switched_off.push_back({spelling.entry, entry.origin});
      return {};
    }
    setting.value =
        spelling.implied_value.empty() ? entry.values.front() : std::string(spelling.implied_value);
  } else if (entry.kind == TomlEntry::Kind::kSwitch && spelling.takes_value()) {
    return wrong_kind(entry, "not a switch: it takes " + std::string(spelling.entry->value));
  }
  if (entry.kind == TomlEntry::Kind::kList && !is_among(kLists, spelling.entry->name))
    return wrong_kind(entry, "not a list: it takes one value");
  if (is_switch) {
    scanned.settings.push_back(std::move(setting));
    return {};
  }
  for (const std::string& value : entry.values) {
    if (value.empty()) return wrong_kind(entry, "empty");
    setting.value = value;
    scanned.settings.push_back(setting);
  }
  return {};
}

// Adds a line of [transports]: NAME = "COMMAND".
Result<void> add_transport(const TomlEntry& entry, Scanned& scanned) {
  if (entry.kind != TomlEntry::Kind::kText)
    return Error{Code::kInvalidArgument,
                 entry.origin + ": " + entry.key + " is not the command of a transport",
                 "flags come before [transports]; below it write NAME = \"COMMAND\""};
  for (const auto& [word, choice] : transport_choices())
    if (word == entry.key)
      return Error{Code::kInvalidArgument, entry.origin + ": " + word + " is a transport of ivyrun",
                   "choose another name"};
  const Result<std::string> name = parse_job_name(entry.key);
  if (!name.ok()) return name.error().context(entry.origin);
  const std::string& text = entry.values.front();
  const auto words = parse_exec(text);
  if (!words.ok()) return words.error().context(entry.origin + ": " + entry.key);
  scanned.transports.push_back({entry.key, text, entry.origin});
  return {};
}

Result<void> add_file(const std::string& path, const std::string& text, Scanned& scanned) {
  const Scanned before = scanned;
  for (const TomlEntry& entry : IVY_TRY(parse_toml(text, path, kTransportTable))) {
    if (entry.table == kTransportTable) {
      IVY_CHECK(add_transport(entry, scanned));
      continue;
    }
    const OptionSpelling spelling = IVY_TRY(flag_of(entry));
    if (before.decides(*spelling.entry)) continue;
    IVY_CHECK(add_entry(entry, spelling, scanned));
  }
  return {};
}

const Setting* config_setting(const Scanned& scanned) {
  for (auto setting = scanned.settings.rbegin(); setting != scanned.settings.rend(); ++setting)
    if (setting->entry->name == "config") return &*setting;
  return nullptr;
}

}  // namespace

ConfigPaths config_paths(const Environment& environment) {
  ConfigPaths paths;
  const std::string* const config_home = find_variable(environment, "XDG_CONFIG_HOME");
  const std::string* const home = find_variable(environment, "HOME");
  // According to the XDG specification, a relative path counts as unset.
  if (config_home != nullptr && config_home->starts_with('/')) {
    paths.user = *config_home + "/ivyrun/config.toml";
  } else if (home != nullptr && !home->empty()) {
    paths.user = *home + "/.config/ivyrun/config.toml";
  }
  return paths;
}

Result<void> add_config_files(const ConfigPaths& paths, Scanned& scanned) {
  if (const Setting* named = config_setting(scanned)) {
    if (named->value == "none") return {};
    const std::string path = named->value;
    const std::string spelling = named->spelling;
    const auto text = read_settings_file(path, FileOwner::kAny);
    if (!text.ok()) return text.error().context(spelling);
    if (!*text)
      return Error{Code::kInvalidArgument, spelling + ": " + path + " does not exist",
                   "--config FILE needs a TOML file of flags; --config none reads no file"};
    IVY_CHECK(add_file(path, **text, scanned));
  }
  for (const std::string& path : {paths.user, paths.system}) {
    if (path.empty()) continue;
    const std::optional<std::string> text = IVY_TRY(read_settings_file(path, FileOwner::kAny));
    if (text) IVY_CHECK(add_file(path, *text, scanned));
  }
  return {};
}

}  // namespace ivy
