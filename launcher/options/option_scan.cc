// SPDX-License-Identifier: Apache-2.0
// We scan the command line ourselves, because CLI11 reads `-np 4` as `-n p`, takes an unknown flag
// before the program for the program, and does not treat '_' and '-' as equal.
#include "launcher/options/option_scan.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// "-nproc_per_node 2": a single dash before a long name is accepted, as in Open MPI.
std::optional<OptionSpelling> find_flag(const std::string& typed) {
  std::optional<OptionSpelling> spelling = find_option(typed);
  if (!spelling && typed.size() > 2 && typed[1] != '-') spelling = find_option("-" + typed);
  return spelling;
}

Error unknown_flag(const std::string& typed) {
  const std::size_t blank = typed.find(' ');
  if (blank != std::string::npos && find_flag(typed.substr(0, blank)))
    return usage_error("unknown flag \"" + typed + "\"",
                       "write a flag and its value as two words, or as one with = between them");
  const std::string nearest = nearest_option(typed);
  return usage_error("unknown flag " + typed,
                     nearest.empty()
                         ? "ivyrun --help all lists every flag; the program's own flags "
                           "come after the program"
                         : "did you mean " + nearest + "?");
}

// Returns true for "-Host" and "-NP": a long name with wrong capitals, not a letter with its value.
bool is_misspelt_case(const std::string& typed) {
  const std::string lower = lower_case(typed);
  if (lower == typed || typed.size() <= 2) return false;
  return find_flag(lower).has_value();
}

// Returns "--nproc-per-node N|auto|gpu|cpu", as shown in the help.
std::string wanted_form(const std::string& typed) {
  const std::optional<OptionSpelling> spelling = find_flag(typed);
  return typed + " " + (spelling ? std::string(spelling->entry->value) : "VALUE");
}

// U+2010 to U+2015 and the minus sign, with which word processors and web pages replace "-" and
// "--".
bool begins_with_typographic_dash(const std::string& token) {
  const bool is_dash =
      token.starts_with("\xe2\x80") && token.size() > 2 && token[2] >= '\x90' && token[2] <= '\x95';
  return is_dash || token.starts_with("\xe2\x88\x92");
}

// If the value is itself a flag, the value was almost certainly forgotten.
Result<std::string> following_value(const std::vector<std::string>& arguments, std::size_t& at,
                                    const std::string& typed) {
  if (at + 1 >= arguments.size()) return usage_error(typed + " needs a value", wanted_form(typed));
  const std::string& next = arguments[at + 1];
  if (next == "--" || (next.size() > 1 && next.front() == '-' &&
                       find_flag(next.substr(0, next.find('='))).has_value()))
    return usage_error(typed + " needs a value, but " + next + " follows",
                       "if " + next + " is the value, write " + typed + "=" + next);
  ++at;
  return next;
}

// Adds a flag that was found by its spelling; `joined` is the text after its '='.
Result<void> add_setting(const OptionSpelling& spelling, const std::string& typed,
                         const std::optional<std::string>& joined,
                         const std::vector<std::string>& arguments, std::size_t& at, Scanned& out) {
  Setting setting{spelling.entry, "true", typed};
  if (spelling.takes_value()) {
    setting.value = joined ? *joined : IVY_TRY(following_value(arguments, at, typed));
    setting.is_next_word = !joined;
    if (setting.value.empty()) return usage_error(typed + " has an empty value");
  } else {
    const std::string_view joinable = spelling.entry->joined_value;
    if (joined && is_joinable(joinable, *joined)) {
      setting.value = *joined;
    } else if (joined && spelling.entry->kind == OptionKind::kHonoured) {
      const Result<bool> on = parse_switch(*joined);
      if (!on.ok())
        return joinable.empty()
                   ? usage_error(typed + " takes no value: " + on.error().message, "write " + typed)
                   : usage_error(typed + "=" + *joined + ": " + typed + " takes nothing or " +
                                     std::string(joinable),
                                 typed + "=" + std::string(joinable));
      if (!on.value()) {
        out.switched_off.push_back({spelling.entry, ""});
        return {};
      }
    }
    if (!spelling.implied_value.empty()) setting.value = spelling.implied_value;
  }
  out.settings.push_back(std::move(setting));
  return {};
}

// A number joined to a letter must start like a number, so that "-nproc" counts as a mistyped name
// and not as the letter n with the value "proc".
bool can_be_joined(const OptionSpelling& spelling, std::string_view rest) {
  const std::string_view wanted = spelling.entry->value;
  const bool is_number = wanted == "N" || wanted.starts_with("0..");
  return !is_number || rest.find_first_of("0123456789+-") == 0;
}

// Scans "-n4", "-vv", "-lv": letters, until one takes the rest as its value.
Result<void> scan_letters(const std::vector<std::string>& arguments, std::size_t& at,
                          Scanned& out) {
  const std::string& token = arguments[at];
  for (std::size_t i = 1; i < token.size(); ++i) {
    const std::string typed{'-', token[i]};
    const std::optional<OptionSpelling> spelling = find_option(typed);
    if (!spelling) return unknown_flag(token.substr(0, token.find('=')));
    std::optional<std::string> rest;
    if (spelling->takes_value() && i + 1 < token.size()) {
      const bool has_equals = token[i + 1] == '=';
      rest = token.substr(has_equals ? i + 2 : i + 1);
      if (!has_equals && !can_be_joined(*spelling, *rest))
        return unknown_flag(token.substr(0, token.find('=')));
    }
    // The error for "-mpkg" must not be about a flag -p, which was not typed.
    if (i > 1 && spelling->entry->kind == OptionKind::kRejected)
      return unknown_flag(token.substr(0, token.find('=')));
    IVY_CHECK(add_setting(*spelling, typed, rest, arguments, at, out));
    // srun's "-K1": a number after a switch without effect belongs to the switch.
    if (spelling->entry->kind == OptionKind::kIgnored && i + 1 < token.size() &&
        token.find_first_not_of("0123456789", i + 1) == std::string::npos)
      break;
    if (spelling->takes_value() || spelling->entry->kind == OptionKind::kRejected) break;
  }
  return {};
}

}  // namespace

bool is_joinable(std::string_view wanted, std::string_view text) {
  const bool is_any =
      !wanted.empty() && std::isupper(static_cast<unsigned char>(wanted.front())) != 0;
  return !text.empty() && (is_any || wanted == text);
}

Result<Scanned> scan_command_line(const std::vector<std::string>& arguments) {
  Scanned out;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& token = arguments[at];
    if (token == "--") {
      ++at;
      out.is_command_marked = true;
      break;
    }
    if (begins_with_typographic_dash(token))
      return usage_error("\"" + token + "\" starts with a typographic dash",
                         "type - or -- instead; if it is the name of a program, put -- before it");
    if (token.size() < 2 || token.front() != '-') break;
    const std::size_t equals = token.find('=');
    const std::string typed = token.substr(0, equals);
    std::optional<std::string> joined;
    if (equals != std::string::npos) joined = token.substr(equals + 1);
    if (const std::optional<OptionSpelling> spelling = find_flag(typed)) {
      IVY_CHECK(add_setting(*spelling, typed, joined, arguments, at, out));
    } else if (token[1] == '-' || is_misspelt_case(typed)) {
      return unknown_flag(typed);
    } else {
      IVY_CHECK(scan_letters(arguments, at, out));
    }
  }
  out.command.assign(
      arguments.begin() + static_cast<std::ptrdiff_t>(std::min(at, arguments.size())),
      arguments.end());
  return out;
}

namespace {

// Returns a name for the decision that a flag takes part in: other flags may decide the same.
std::string_view decision_of(std::string_view flag) {
  if (flag == "hostfile" || flag == "hosts-from" || flag == "fake-hosts") return "hosts";
  if (flag == "exec") return "transport";
  return flag;
}

// torchrun's flags without effect, such as --rdzv-conf, are read from PET_* for their notes.
bool may_have_default(const OptionEntry& entry) {
  if (entry.name == "help" || entry.name == "version") return false;
  return entry.kind == OptionKind::kHonoured || entry.origin == OptionOrigin::kTorchrun;
}

std::string variable_of(std::string_view prefix, std::string_view flag) {
  std::string name(prefix);
  for (const char c : flag)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// Returns the variables that can be a flag's default. There are few, if any, and each flag searches
// them.
Environment possible_defaults(const Environment& environment) {
  Environment possible;
  for (const EnvVariable& variable : environment)
    if (variable.name.starts_with("IVY_") || variable.name.starts_with("PET_"))
      possible.push_back(variable);
  return possible;
}

}  // namespace

bool Scanned::decides(const OptionEntry& entry) const {
  const auto is_it = [&](const auto& other) {
    return decision_of(other.entry->name) == decision_of(entry.name);
  };
  return std::any_of(settings.begin(), settings.end(), is_it) ||
         std::any_of(switched_off.begin(), switched_off.end(), is_it);
}

Result<void> add_defaults(const Environment& environment, Scanned& scanned) {
  const Environment possible = possible_defaults(environment);
  if (possible.empty()) return {};
  const Scanned typed = scanned;
  for (const OptionEntry& entry : option_table()) {
    if (!may_have_default(entry) || typed.decides(entry)) continue;
    std::string name = variable_of("IVY_", entry.name);
    const std::string* value = find_variable(possible, name);
    if ((value == nullptr || value->empty()) && entry.origin == OptionOrigin::kTorchrun) {
      name = variable_of("PET_", entry.name);
      value = find_variable(possible, name);
    }
    if (value == nullptr || value->empty()) continue;
    const bool is_joined = is_joinable(entry.joined_value, *value);
    if (entry.value.empty() && !is_joined) {
      const Result<bool> on = parse_switch(*value);
      if (!on.ok()) return on.error().context(name);
      if (!on.value()) {
        scanned.switched_off.push_back({&entry, name});
        continue;
      }
    }
    Setting setting{&entry, entry.value.empty() && !is_joined ? "true" : *value, name};
    setting.origin = name;
    scanned.settings.push_back(std::move(setting));
  }
  return {};
}

void note_unknown_variables(const Environment& environment, std::vector<std::string>& notes) {
  // Read by ivyrun's programs, although they are neither a flag's default nor a worker's variable.
  constexpr std::string_view kRead[] = {"IVY_PYTHON",      "IVY_SSH_CONFIG",  "IVY_AGENT_*",
                                        "IVY_DEVICE_ROOT", "IVY_LAUNCHER",    "IVY_INIT_METHOD",
                                        "IVY_RENDEZVOUS",  "IVY_JOIN_SECRET", "IVY_NODE_SCOPE_*",
                                        "IVY_TEST*",       "IVY_BIN"};
  const auto is_known = [&](const std::string& name) {
    const auto matches = [&](std::string_view pattern) {
      return env_pattern_matches(pattern, name);
    };
    const auto table = env_table();
    const auto options = option_table();
    return std::any_of(std::begin(kRead), std::end(kRead), matches) ||
           std::any_of(table.begin(), table.end(),
                       [&](const EnvEntry& entry) {
                         return entry.pattern != "IVY_*" && matches(entry.pattern);
                       }) ||
           std::any_of(options.begin(), options.end(), [&](const OptionEntry& entry) {
             return variable_of("IVY_", entry.name) == name;
           });
  };
  for (const EnvVariable& variable : environment) {
    const std::string& name = variable.name;
    if (!name.starts_with("IVY_") || !is_env_name(name) || is_known(name)) continue;
    std::string flag = "--";
    for (const char c : name.substr(4))
      flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::optional<OptionSpelling> alias = find_option(flag);
    const std::string near = alias ? "--" + std::string(alias->entry->name) : nearest_option(flag);
    const std::optional<OptionSpelling> meant = find_option(near);
    notes.push_back(
        name + " is set, but nothing reads it" +
        (meant ? ": did you mean " + variable_of("IVY_", meant->entry->name) + "?"
               : "; IVY_<FLAG> is the default of a flag, and ivyrun --help all lists them"));
  }
}

Result<void> drop_flags_without_effect(Scanned& scanned, std::vector<std::string>& notes) {
  for (const Setting& setting : scanned.settings) {
    const OptionEntry& entry = *setting.entry;
    if (entry.kind == OptionKind::kRejected)
      return usage_error(setting.spelling + " is not a flag of ivyrun", std::string(entry.text));
    if (entry.kind == OptionKind::kIgnored && !entry.text.empty())
      notes.push_back(setting.spelling + " is ignored: " + std::string(entry.text));
  }
  std::erase_if(scanned.settings, [](const Setting& setting) {
    return setting.entry->kind != OptionKind::kHonoured;
  });
  return {};
}

}  // namespace ivy
