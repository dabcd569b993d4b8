// SPDX-License-Identifier: Apache-2.0
// A file of settings: NAME = VALUE in each line, in TOML, with at most one table. Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

struct TomlEntry {
  enum class Kind { kText, kNumber, kSwitch, kList };
  std::string key;
  std::string table = {};  // The table that contains it; empty outside tables.
  Kind kind = Kind::kText;
  std::vector<std::string> values;  // "true" or "false" for a switch; several for a list.
  std::string origin;               // File and line: "/etc/ivyrun/config.toml:3".
};

// Returns the entries in the order of the lines. table: the only table that may occur; empty: none.
// InvalidArgument reads "PATH:LINE:COLUMN: what".
Result<std::vector<TomlEntry>> parse_toml(const std::string& text, const std::string& path,
                                          std::string_view table = {});

// The required owner of a file: rules for users must not be read from a file that users can write.
enum class FileOwner { kAny, kRoot };
// Returns the text of a small regular file, or std::nullopt if it does not exist. Returns
// PermissionDenied if it cannot be opened or, with kRoot, if users other than root can change it.
Result<std::optional<std::string>> read_settings_file(const std::string& path, FileOwner owner);

// Returns an "unknown key" error with the location of the entry and the known key that was probably
// meant.
Error unknown_toml_key(const TomlEntry& entry, const std::string& meant, const std::string& known);

}  // namespace ivy
