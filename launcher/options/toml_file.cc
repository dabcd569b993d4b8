// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/toml_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "proto/contract/text.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

// Lets toml++ return errors as values instead of throwing them.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace ivy {
namespace {

// Size limit of a file of settings, which normally has a few dozen lines.
constexpr std::size_t kMaxSettingsBytes = 64 * 1024;

std::string origin_of(const toml::source_region& source, const std::string& path) {
  return path + ":" + std::to_string(source.begin.line);
}

Error toml_error(const toml::source_region& source, const std::string& path,
                 const std::string& what, std::string fix) {
  return Error{Code::kInvalidArgument,
               origin_of(source, path) + ":" + std::to_string(source.begin.column) + ": " + what,
               std::move(fix)};
}

// Returns a string, an integer or a boolean as text. Returns std::nullopt for other types, which no
// flag accepts.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
  if (const auto on = node.value_exact<bool>()) return *on ? "true" : "false";
  return std::nullopt;
}

Error unexpected_table(const toml::key& key, const std::string& path, std::string_view allowed) {
  return toml_error(key.source(), path, "unexpected table \"" + std::string(key.str()) + "\"",
                    (allowed.empty() ? "tables are not supported"
                                     : "the only table is [" + std::string(allowed) + "]") +
                        ": write NAME = VALUE, such as nproc-per-node = 8");
}

// Converts one setting. A list becomes several values; other types are errors.
Result<TomlEntry> entry_of(const toml::key& key, const toml::node& node, const std::string& path) {
  TomlEntry entry;
  entry.key = std::string(key.str());
  entry.origin = origin_of(key.source(), path);
  const toml::array* const list = node.as_array();
  entry.kind = list != nullptr     ? TomlEntry::Kind::kList
               : node.is_boolean() ? TomlEntry::Kind::kSwitch
               : node.is_integer() ? TomlEntry::Kind::kNumber
                                   : TomlEntry::Kind::kText;
  const auto add = [&](const toml::node& value) -> Result<void> {
    std::optional<std::string> text = scalar_text(value);
    if (!text || text->find('\0') != std::string::npos)
      return toml_error(value.source(), path,
                        entry.key + " has a value of a type that no flag takes",
                        "write a quoted string, an integer, true, false, or a list of strings");
    entry.values.push_back(*std::move(text));
    return {};
  };
  if (list == nullptr) {
    IVY_CHECK(add(node));
    return entry;
  }
  for (const toml::node& value : *list) IVY_CHECK(add(value));
  return entry;
}

// An entry with its line and column: toml++ sorts tables by name.
using PlacedEntry = std::pair<std::pair<std::uint32_t, std::uint32_t>, TomlEntry>;

// Adds the entries of a table; `name` is empty for the whole file, which may contain the table
// `allowed`.
Result<void> add_entries(const toml::table& table, const std::string& path, std::string_view name,
                         std::string_view allowed, std::vector<PlacedEntry>& found) {
  for (const auto& [key, node] : table) {
    if (const toml::table* const inner = node.as_table()) {
      if (!name.empty() || allowed.empty() || key.str() != allowed)
        return unexpected_table(key, path, allowed);
      IVY_CHECK(add_entries(*inner, path, allowed, allowed, found));
      continue;
    }
    TomlEntry entry = IVY_TRY(entry_of(key, node, path));
    entry.table = name;
    const toml::source_position at = key.source().begin;
    found.emplace_back(std::pair(at.line, at.column), std::move(entry));
  }
  return {};
}

}  // namespace

Result<std::vector<TomlEntry>> parse_toml(const std::string& text, const std::string& path,
                                          std::string_view table) {
  const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path));
  if (!parsed)
    return toml_error(parsed.error().source(), path, std::string(parsed.error().description()),
                      "write TOML, one setting per line: NAME = \"TEXT\", NAME = 8 or NAME = true");
  std::vector<PlacedEntry> found;
  IVY_CHECK(add_entries(parsed.table(), path, "", table, found));
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TomlEntry> entries;
  for (auto& [at, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

Result<std::optional<std::string>> read_settings_file(const std::string& path, FileOwner owner) {
  // O_NONBLOCK, because opening a FIFO would wait for a writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return std::optional<std::string>{};
  if (!file) return errno_error(Code::kPermissionDenied, "open " + path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error{Code::kInvalidArgument, path + " is not a regular file",
                 "it must be a TOML file of settings"};
  if (owner == FileOwner::kRoot && (status.st_uid != 0 || (status.st_mode & 022) != 0))
    return Error{Code::kPermissionDenied, path + " can be modified by users other than root",
                 "chown root " + path + " && chmod go-w " + path};
  std::optional<std::string> text = read_from(file.get(), kMaxSettingsBytes + 1);
  if (!text) return errno_error(Code::kUnavailable, "read " + path, errno);
  if (text->size() > kMaxSettingsBytes)
    return Error{Code::kInvalidArgument, path + " is longer than 64 KiB",
                 "a settings file needs only one line per flag"};
  return text;
}

Error unknown_toml_key(const TomlEntry& entry, const std::string& meant, const std::string& known) {
  return Error{Code::kInvalidArgument, entry.origin + ": unknown key \"" + entry.key + "\"",
               meant.empty() ? known : "did you mean " + meant + "?"};
}

}  // namespace ivy
