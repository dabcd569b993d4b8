// SPDX-License-Identifier: Apache-2.0
// The patterns of --stage=DIR:PATTERNS, separated by commas. A pattern selects files, and with a
// directory everything below it. "!PATTERN" leaves them out. If a pattern without "!" is given, only
// selected files are staged, also those that git ignores.
//
//   *.py        files and directories of this name at any depth
//   conf/*.toml at this path; "*" and "?" match within a name, "[a-z]" one character
//   data/**     everything below data
//
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy::stage {

// Returns whether a path matches a glob. "**" also matches '/'.
bool matches_glob(std::string_view glob, std::string_view path);

class Patterns {
 public:
  Patterns() = default;
  explicit Patterns(const std::vector<std::string>& patterns);
  // Returns whether the file is staged. `path` is relative to the staged directory.
  bool selects(std::string_view path) const;
  // Returns whether "!PATTERN" leaves out the path or a directory above it.
  bool leaves_out(std::string_view path) const;
  bool has_selection() const { return !selected_.empty(); }

 private:
  std::vector<std::string> selected_;
  std::vector<std::string> left_out_;
};

}  // namespace ivy::stage
