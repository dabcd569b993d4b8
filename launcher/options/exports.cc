// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/exports.h"

#include <utility>

#include "launcher/options/option_values.h"

namespace ivy {
namespace {

// Linux rejects a longer "NAME=value" (MAX_ARG_STRLEN, including the final NUL).
constexpr std::size_t kMaxVariableBytes = (128u << 10) - 1;

Error rejected_name(const std::string& name) {
  std::string fix = "leave it out";
  if (name == "MASTER_ADDR") fix = "use --master-addr ADDRESS";
  if (name == "MASTER_PORT") fix = "use --master-port PORT";
  return Error{Code::kInvalidArgument, name + " is set by ivyrun for every worker", fix};
}

Result<void> add_checked(Environment& out, const std::string& name, std::string value) {
  if (!is_env_name(name))
    return Error{Code::kInvalidArgument, in_quotes(name) + " is not a valid variable name",
                 "write NAME or NAME=VALUE, and one flag per variable"};
  if (env_rule(name) == EnvRule::kSet) return rejected_name(name);
  if (value.find('\0') != std::string::npos)
    return Error{Code::kInvalidArgument, "the value of " + name + " contains a NUL byte"};
  if (name.size() + 1 + value.size() > kMaxVariableBytes)
    return Error{Code::kInvalidArgument,
                 name + " has " + std::to_string(value.size()) + " bytes, but Linux allows only " +
                     std::to_string(kMaxVariableBytes - name.size() - 1),
                 "put the value into a file"};
  set_variable(out, name, std::move(value));
  return {};
}

}  // namespace

Result<void> add_export(Environment& out, std::string_view text, const Environment& caller) {
  const std::size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  if (equals != std::string_view::npos)
    return add_checked(out, name, std::string(text.substr(equals + 1)));
  if (name.ends_with('*')) {
    for (const EnvVariable& variable : caller) {
      // A pattern only matches variables that may be passed: ranks of an outer job and unusual
      // names are left out.
      const EnvRule rule = env_rule(variable.name);
      if (!env_pattern_matches(name, variable.name) || !is_env_name(variable.name)) continue;
      if (rule == EnvRule::kSet || rule == EnvRule::kScrub) continue;
      IVY_CHECK(add_checked(out, variable.name, variable.value));
    }
    return {};
  }
  const std::string* value = find_variable(caller, name);
  if (is_env_name(name) && env_rule(name) != EnvRule::kSet && value == nullptr)
    return Error{Code::kInvalidArgument, name + " is not set in this environment",
                 "give it a value: " + name + "=VALUE"};
  return add_checked(out, name, value == nullptr ? "" : *value);
}

void set_variables(Environment& environment, const Environment& more) {
  for (const EnvVariable& variable : more) set_variable(environment, variable.name, variable.value);
}

Result<Environment> parse_exports(const std::vector<std::string>& exports,
                                  const Environment& caller) {
  Environment out;
  for (const std::string& text : exports) {
    const Result<void> added = add_export(out, text, caller);
    if (!added.ok()) return added.error().context("-x");
  }
  return out;
}

}  // namespace ivy
