// SPDX-License-Identifier: Apache-2.0
// A file of settings: NAME = VALUE in each line, in TOML, without tables. Thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct TomlEntry {
  enum class Kind { kText, kNumber, kSwitch, kList };
  std::string key;
  Kind kind = Kind::kText;
  std::vector<std::string> values;  // "true" or "false" for a switch; several for a list.
  std::string place;                // The file and the line: "/etc/ivyrun/config.toml:3".
};

// In the order of the lines. InvalidArgument reads "PATH:LINE:COLUMN: what".
Result<std::vector<TomlEntry>> parse_toml(const std::string& text, const std::string& path);

// The owner that a file must have: rules for users must not come from a file they can write.
enum class FileOwner { kAny, kRoot };
// Returns the text of a small regular file; nothing if it does not exist. PermissionDenied: it
// cannot be opened, or, with kRoot, users other than root can change it.
Result<std::optional<std::string>> read_settings_file(const std::string& path, FileOwner owner);

// "unknown key" at that place, with the known one that was probably meant.
Error unknown_toml_key(const TomlEntry& entry, const std::string& meant, const std::string& known);

}  // namespace ivy
