// The scan is ours because CLI11 reads `-np 4` as `-n p`, takes an unknown flag before the program
// for the program, and does not equate '_' and '-'.
#include "launcher/option_scan.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "launcher/option_values.h"

namespace ivy {
namespace {

Error usage_error(const std::string& message, const std::string& fix = {}) {
  return Error{Code::kInvalidArgument, message, fix};
}

// ---- Scan -----------------------------------------------------------------------------------

Error unknown_flag(const std::string& typed) {
  const std::string nearest = nearest_option(typed);
  return usage_error("unknown flag " + typed,
                     nearest.empty() ? "ivyrun --help lists every flag; the program's own flags "
                                       "come after the program"
                                     : "did you mean " + nearest + "?");
}

// A value that is itself a flag is nearly always a forgotten value.
Result<std::string> following_value(const std::vector<std::string>& arguments, std::size_t& at,
                                    const std::string& typed) {
  if (at + 1 >= arguments.size()) return usage_error(typed + " needs a value", typed + " VALUE");
  const std::string& next = arguments[at + 1];
  if (next == "--" || (next.size() > 1 && next.front() == '-' &&
                       find_option(next.substr(0, next.find('='))).has_value()))
    return usage_error(typed + " needs a value, but " + next + " follows",
                       "if " + next + " is the value: " + typed + "=" + next);
  ++at;
  return next;
}

// One flag that was found by its spelling; `joined` is what followed its '='.
Result<void> add_setting(const OptionSpelling& spelling, const std::string& typed,
                         const std::optional<std::string>& joined,
                         const std::vector<std::string>& arguments, std::size_t& at, Scanned& out) {
  Setting setting{spelling.entry, "true", typed};
  if (spelling.takes_value()) {
    setting.value = joined ? *joined : IVY_TRY(following_value(arguments, at, typed));
    if (setting.value.empty()) return usage_error(typed + " has an empty value");
  } else {
    const bool on =
        !joined || spelling.entry->kind != OptionKind::kHonoured || IVY_TRY(parse_switch(*joined));
    if (!on) return {};
    if (!spelling.implied_value.empty()) setting.value = spelling.implied_value;
  }
  out.settings.push_back(std::move(setting));
  return {};
}

// "-n4", "-vv", "-lv": letters until one takes the rest as its value.
Result<void> scan_letters(const std::vector<std::string>& arguments, std::size_t& at,
                          Scanned& out) {
  const std::string& token = arguments[at];
  for (std::size_t i = 1; i < token.size(); ++i) {
    const std::string typed{'-', token[i]};
    const std::optional<OptionSpelling> spelling = find_option(typed);
    if (!spelling) return unknown_flag(token);
    std::optional<std::string> rest;
    if (spelling->takes_value() && i + 1 < token.size())
      rest = token.substr(token[i + 1] == '=' ? i + 2 : i + 1);
    IVY_CHECK(add_setting(*spelling, typed, rest, arguments, at, out));
    if (spelling->takes_value() || spelling->entry->kind == OptionKind::kRefused) break;
  }
  return {};
}

}  // namespace

Result<Scanned> scan_command_line(const std::vector<std::string>& arguments) {
  Scanned out;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& token = arguments[at];
    if (token == "--") {
      ++at;
      break;
    }
    if (token.size() < 2 || token.front() != '-') break;
    const std::size_t equals = token.find('=');
    const std::string typed = token.substr(0, equals);
    std::optional<std::string> joined;
    if (equals != std::string::npos) joined = token.substr(equals + 1);
    if (const std::optional<OptionSpelling> spelling = find_option(typed)) {
      IVY_CHECK(add_setting(*spelling, typed, joined, arguments, at, out));
    } else if (token[1] == '-') {
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

// ---- Defaults from the environment ------------------------------------------------------------

namespace {

bool names_hosts(std::string_view flag) {
  return flag == "hosts" || flag == "hostfile" || flag == "fake-hosts";
}

std::string variable_of(std::string_view prefix, std::string_view flag) {
  std::string name(prefix);
  for (const char c : flag)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

Result<void> add_defaults(const Environment& environment, Scanned& scanned) {
  const std::vector<Setting> typed = scanned.settings;
  for (const OptionEntry& entry : option_table()) {
    if (entry.name == "help" || entry.name == "version") continue;
    if (entry.kind != OptionKind::kHonoured && entry.origin != OptionOrigin::kTorchrun) continue;
    const bool is_typed = std::any_of(typed.begin(), typed.end(), [&](const Setting& setting) {
      return setting.entry == &entry ||
             (names_hosts(entry.name) && names_hosts(setting.entry->name));
    });
    if (is_typed) continue;
    std::string name = variable_of("IVY_", entry.name);
    const std::string* value = find_variable(environment, name);
    if ((value == nullptr || value->empty()) && entry.origin == OptionOrigin::kTorchrun) {
      name = variable_of("PET_", entry.name);
      value = find_variable(environment, name);
    }
    if (value == nullptr || value->empty()) continue;
    if (entry.value.empty()) {
      const Result<bool> on = parse_switch(*value);
      if (!on.ok()) return on.error().context(name);
      if (!on.value()) continue;
    }
    scanned.settings.push_back(Setting{&entry, entry.value.empty() ? "true" : *value, name});
  }
  return {};
}

// ---- Flags of other launchers -----------------------------------------------------------------

Result<void> sort_out(Scanned& scanned, std::vector<std::string>& notes) {
  for (const Setting& setting : scanned.settings) {
    const OptionEntry& entry = *setting.entry;
    if (entry.kind == OptionKind::kLater)
      return usage_error(setting.shown + " is not available yet", std::string(entry.text));
    if (entry.kind == OptionKind::kRefused)
      return usage_error(setting.shown + " is not a flag of ivyrun", std::string(entry.text));
    if (entry.kind == OptionKind::kIgnored && !entry.text.empty())
      notes.push_back(setting.shown + " has no effect: " + std::string(entry.text));
  }
  std::erase_if(scanned.settings, [](const Setting& setting) {
    return setting.entry->kind != OptionKind::kHonoured;
  });
  return {};
}

}  // namespace ivy
