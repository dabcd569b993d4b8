// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/stage_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "proto/contract/text.h"
#include "proto/wire/stage_codec.h"

namespace ivy::stage {
namespace {

constexpr std::size_t kLargest = 3;  // Files and directories that a message names.

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return false;
    at += length;
  }
  return true;
}

// Removes "." and "a/.." from an absolute path.
std::string normal(const std::string& path) {
  std::vector<std::string_view> parts;
  for (const std::string_view part : parts_of(path, '/')) {
    if (part == ".." && !parts.empty()) parts.pop_back();
    if (!part.empty() && part != "." && part != "..") parts.push_back(part);
  }
  return "/" + joined(parts, "/");
}

std::string without_control_bytes(const std::string& path) {
  std::string text;
  for (const char c : path) {
    std::array<char, 8> escaped{};
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte >= 0x20 && byte < 0x7f;
    if (!is_plain) std::snprintf(escaped.data(), escaped.size(), "\\x%02x", byte);
    text += is_plain ? std::string(1, c) : std::string(escaped.data());
  }
  return text;
}

// Returns "data (1.9 GiB), model.bin (500 MiB)": the largest entries of the top directory.
std::string largest_text(const std::vector<SourceFile>& files) {
  std::map<std::string, std::uint64_t> sizes;
  for (const SourceFile& file : files) {
    const std::size_t slash = file.path.find('/');
    sizes[file.path.substr(0, slash == std::string::npos ? slash : slash + 1)] += file.size;
  }
  std::vector<std::pair<std::uint64_t, std::string>> sorted;
  for (const auto& [name, size] : sizes) sorted.emplace_back(size, name);
  std::sort(sorted.rbegin(), sorted.rend());
  if (sorted.size() > kLargest) sorted.resize(kLargest);
  std::string text;
  for (const auto& [size, name] : sorted) add_item(text, name + " (" + size_text(size) + ")");
  return text;
}

Error over_limit(const std::vector<SourceFile>& files, const std::string& root,
                 std::uint64_t limit) {
  const auto largest = std::max_element(
      files.begin(), files.end(),
      [](const SourceFile& a, const SourceFile& b) { return a.size < b.size; });
  const std::string fix =
      "leave files out (--stage='" + root + ":!PATTERN', or .gitignore), or raise the limit: "
      "--stage-limit SIZE";
  if (largest->size > limit)
    return Error{Code::kResourceExhausted,
                 root + "/" + largest->path + " has " + size_text(largest->size) +
                     ", more than --stage-limit " + size_text(limit),
                 fix};
  return Error{Code::kResourceExhausted,
               root + " has " + files_text(count_files(files), total_bytes(files)) +
                   ", more than --stage-limit " + size_text(limit) + "; the largest: " +
                   largest_text(files),
               fix};
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 || value >= 10 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text.data();
}

std::string files_text(std::size_t files, std::uint64_t bytes) {
  std::string number = std::to_string(files);
  for (std::size_t at = number.size(); at > 3;) number.insert(at -= 3, ",");
  return number + (files == 1 ? " file, " : " files, ") + size_text(bytes);
}

std::uint64_t total_bytes(const std::vector<SourceFile>& files) {
  std::uint64_t bytes = 0;
  for (const SourceFile& file : files) bytes += file.size;
  return bytes;
}

std::size_t count_files(const std::vector<SourceFile>& files) {
  return static_cast<std::size_t>(
      std::count_if(files.begin(), files.end(),
                    [](const SourceFile& file) { return !S_ISDIR(file.mode); }));
}

bool link_stays_inside(const std::string& path, const std::string& target) {
  if (target.empty() || target.front() == '/') return false;
  // Depth below the root of the directory that the target is relative to.
  auto depth = std::count(path.begin(), path.end(), '/');
  for (const std::string_view part : parts_of(target, '/')) {
    if (part == "..") --depth;
    if (!part.empty() && part != "." && part != "..") ++depth;
    if (depth < 0) return false;
  }
  return true;
}

Result<void> check_files(const std::vector<SourceFile>& files, const std::string& root,
                         std::uint64_t limit) {
  for (const SourceFile& file : files) {
    const std::string shown = without_control_bytes(root + "/" + file.path);
    const std::string leave_out = "or leave it out: --stage='" + root + ":!PATTERN'";
    if (!is_utf8(file.path))
      return Error{Code::kInvalidArgument, shown + ": its name is not UTF-8",
                   "rename it, " + leave_out};
    if (S_ISLNK(file.mode) && !link_stays_inside(file.path, file.link))
      return Error{Code::kInvalidArgument,
                   shown + " is a symbolic link to " + without_control_bytes(file.link) +
                       ", out of the staged directory",
                   "replace it by a copy or by a relative link inside, " + leave_out};
  }
  if (files.size() > kMaxEntries)
    return Error{Code::kResourceExhausted,
                 root + " has " + std::to_string(files.size()) + " files, more than " +
                     std::to_string(kMaxEntries),
                 "leave files out: --stage='" + root + ":!PATTERN'"};
  if (total_bytes(files) > limit) return over_limit(files, root, limit);
  return {};
}

Manifest make_manifest(const std::vector<SourceFile>& files) {
  Manifest manifest;
  std::map<std::string, std::uint32_t> known;
  for (const SourceFile& file : files) {
    StageEntry& entry = *manifest.message.add_entries();
    entry.set_path(file.path);
    entry.set_mode(file.mode);
    if (S_ISLNK(file.mode)) entry.set_link(file.link);
    if (!S_ISREG(file.mode)) continue;
    entry.set_mtime_ns(file.mtime_ns);
    const auto [place, is_new] =
        known.emplace(file.sha256, static_cast<std::uint32_t>(manifest.sources.size()));
    entry.set_object(place->second);
    if (!is_new) continue;
    StageObject& object = *manifest.message.add_objects();
    object.set_sha256(file.sha256);
    object.set_size(file.size);
    manifest.sources.push_back(file);
  }
  return manifest;
}

bool is_below(const std::string& path, const std::string& root, std::string& rest) {
  const std::string whole = normal(path);
  const std::string top = normal(root);
  if (whole == top || top == "/") {
    rest = whole == top ? "" : whole.substr(1);
    return true;
  }
  if (!whole.starts_with(top + "/")) return false;
  rest = whole.substr(top.size() + 1);
  return true;
}

std::string staged_directory(const std::string& root, const std::string& working_directory,
                             const std::string& tree) {
  std::string rest;
  if (!is_below(working_directory, root, rest) || rest.empty()) return tree;
  return tree + "/" + rest;
}

std::string staged_program(const std::string& root, const std::string& working_directory,
                           const std::string& program) {
  std::string inside;
  const bool works_inside = is_below(working_directory, root, inside);
  const bool is_absolute = program.starts_with("/");
  const bool is_path = program.find('/') != std::string::npos || program.ends_with(".py");
  if (!is_path || (works_inside && !is_absolute)) return program;
  std::string rest;
  if (!is_below(is_absolute ? program : working_directory + "/" + program, root, rest))
    return program;
  // Relative to the working directory on the host, which may be below the root.
  std::string up;
  if (works_inside && !inside.empty())
    for (std::size_t i = 0; i < parts_of(inside, '/').size(); ++i) up += "../";
  return "./" + up + rest;
}

std::string tree_name(const std::string& root, const std::string& job_id) {
  constexpr std::size_t kMaxName = 40;
  std::string name;
  for (const char c : root.substr(root.rfind('/') + 1)) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
    name += is_plain ? c : '_';
  }
  while (name.starts_with(".")) name.erase(0, 1);
  if (name.empty()) name = "tree";
  return name.substr(0, kMaxName) + "-" + job_id.substr(0, 12);
}

}  // namespace ivy::stage
