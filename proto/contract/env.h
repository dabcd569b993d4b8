// SPDX-License-Identifier: Apache-2.0
// The table of environment variables that ivyrun sets for workers, passes on to other hosts, or
// removes. Pure; thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Search path of a shell if PATH is not set.
inline constexpr char kDefaultSearchPath[] = "/usr/local/bin:/usr/bin:/bin";

// Treatment of a variable of the caller's environment (the shell in which ivyrun was started).
enum class EnvRule {
  kInherit,  // Kept on this host, not passed to other hosts.
  kAllow,    // Kept on this host and passed to other hosts over SSH and agents.
  kScrub,    // Removed from every worker: another launcher's rank or internal state.
  kSet,      // Set by ivyrun for every worker; the caller's value is ignored.
};

struct EnvEntry {
  std::string_view pattern;  // A name, or a prefix followed by '*'.
  EnvRule rule;
  std::string_view reader;  // The programs that read it, for --explain-env.
};

// Returns all entries, most specific first.
std::span<const EnvEntry> env_table();

// Returns whether a pattern of the table (a name, or a prefix followed by '*') matches this name.
// Inline, because every start calls it often.
inline bool env_pattern_matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return name == pattern;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

// Returns the rule of the first matching entry, or kInherit.
EnvRule env_rule(std::string_view name);

// Returns whether a shell could export this name: [A-Za-z_][A-Za-z0-9_]*.
bool is_env_name(std::string_view name);

struct EnvVariable {
  std::string name;
  std::string value;  // May hold any bytes but NUL.
  bool operator==(const EnvVariable&) const = default;
};
using Environment = std::vector<EnvVariable>;

// Converts `environ` to a list. Entries without '=' are skipped.
Environment environment_of(char* const* environment_block);

// Sets or replaces one variable.
void set_variable(Environment& environment, std::string name, std::string value);
void unset_variable(Environment& environment, std::string_view name);
// Returns null if the variable is not set.
const std::string* find_variable(const Environment& environment, std::string_view name);

}  // namespace ivy
