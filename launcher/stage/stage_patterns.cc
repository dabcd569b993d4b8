// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/stage_patterns.h"

#include <algorithm>

namespace ivy::stage {
namespace {

// Matches "[a-z]" at the start of `glob` against `c`, and removes it. A bracket without an end is a
// character like any other.
bool take_bracket(std::string_view& glob, char c) {
  const std::size_t end = glob.find(']', glob.size() > 1 && glob[1] == '!' ? 3 : 2);
  if (end == std::string_view::npos) {
    glob.remove_prefix(1);
    return c == '[';
  }
  std::string_view set = glob.substr(1, end - 1);
  glob.remove_prefix(end + 1);
  const bool is_negated = set.front() == '!';
  if (is_negated) set.remove_prefix(1);
  bool is_in = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      is_in |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      is_in |= set[i] == c;
    }
  }
  return is_in != is_negated && c != '/';
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return matches_glob(pattern, pattern.find('/') == std::string::npos ? name : path);
  });
}

// Returns true if a pattern matches the path or a directory above it.
bool covers(const std::vector<std::string>& patterns, std::string_view path) {
  for (std::size_t end = path.find('/'); end != std::string_view::npos;
       end = path.find('/', end + 1))
    if (matches_any(patterns, path.substr(0, end))) return true;
  return matches_any(patterns, path);
}

}  // namespace

bool matches_glob(std::string_view glob, std::string_view path) {
  while (!glob.empty()) {
    if (glob.front() == '*') {
      const bool is_deep = glob.starts_with("**");
      glob.remove_prefix(is_deep ? 2 : 1);
      // "a/**/b" also matches "a/b".
      if (is_deep && glob.starts_with("/") && matches_glob(glob.substr(1), path)) return true;
      for (std::size_t taken = 0; taken <= path.size(); ++taken) {
        if (matches_glob(glob, path.substr(taken))) return true;
        if (taken < path.size() && path[taken] == '/' && !is_deep) return false;
      }
      return false;
    }
    if (path.empty()) return false;
    if (glob.front() == '[') {
      if (!take_bracket(glob, path.front())) return false;
    } else if (glob.front() != path.front() && !(glob.front() == '?' && path.front() != '/')) {
      return false;
    } else {
      glob.remove_prefix(1);
    }
    path.remove_prefix(1);
  }
  return path.empty();
}

Patterns::Patterns(const std::vector<std::string>& patterns) {
  for (std::string pattern : patterns) {
    const bool is_left_out = pattern.starts_with("!");
    if (is_left_out) pattern.erase(0, 1);
    // "data/" and "./data" mean "data".
    while (pattern.starts_with("./")) pattern.erase(0, 2);
    while (pattern.ends_with("/")) pattern.pop_back();
    if (!pattern.empty()) (is_left_out ? left_out_ : selected_).push_back(pattern);
  }
}

bool Patterns::selects(std::string_view path) const {
  return !covers(left_out_, path) && (selected_.empty() || covers(selected_, path));
}

bool Patterns::leaves_out(std::string_view path) const { return covers(left_out_, path); }

}  // namespace ivy::stage
