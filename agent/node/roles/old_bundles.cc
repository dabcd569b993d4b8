// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/old_bundles.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::int64_t kDay = 24 * 60 * 60;
constexpr std::int64_t kUnusedFor = 30 * kDay;
constexpr std::size_t kAlwaysKept = 3;
constexpr std::size_t kNameDigits = 24;  // Digits of the hash (launcher/links/node_upload.cc).
// Left by an installation that was killed, and by one whose connection broke.
constexpr std::string_view kHalfMade = ".new.";
constexpr std::string_view kPart = ".part.";
// Left by a sweep whose process was killed.
constexpr std::string_view kHalfRemoved = ".old.";

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

std::vector<BundleEntry> entries_of(const std::string& parent) {
  std::vector<BundleEntry> entries;
  for (const std::string& name : names_in(parent)) {
    const auto status = status_of(parent + "/" + name);
    if (!status || (!S_ISDIR(status->st_mode) && !S_ISREG(status->st_mode)) ||
        status->st_uid != geteuid())
      continue;
    entries.push_back({name, std::time(nullptr) - status->st_mtime});
  }
  return entries;
}

}  // namespace

bool is_bundle_directory(std::string_view name) {
  const std::size_t dash = name.find('-');
  return dash == kNameDigits && dash + 1 < name.size() &&
         name.find_first_not_of("0123456789abcdef") == dash;
}

std::vector<std::string> old_bundles(std::vector<BundleEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const BundleEntry& a, const BundleEntry& b) { return a.age_s < b.age_s; });
  std::vector<std::string> old;
  std::size_t bundles = 0;
  for (const BundleEntry& entry : entries) {
    const bool is_half = entry.name.starts_with(kHalfMade) || entry.name.starts_with(kPart) ||
                         entry.name.starts_with(kHalfRemoved);
    const bool is_left_over = is_half && entry.age_s > kDay;
    const bool is_unused =
        is_bundle_directory(entry.name) && ++bundles > kAlwaysKept && entry.age_s > kUnusedFor;
    if (is_left_over || is_unused) old.push_back(entry.name);
  }
  return old;
}

void sweep_old_bundles(const std::string& program_directory) {
  const std::filesystem::path directory(program_directory);
  if (!is_bundle_directory(directory.filename().string())) return;
  const auto status = status_of(program_directory);
  // If the clock was set back, ages are negative and every bundle counts as recent.
  if (!status || std::time(nullptr) - status->st_mtime < kDay) return;
  // If we may not mark our own bundle as used, leave the others alone.
  if (utimensat(AT_FDCWD, program_directory.c_str(), nullptr, 0) != 0) return;
  const std::string parent = directory.parent_path();
  for (const std::string& name : old_bundles(entries_of(parent))) {
    std::error_code error;
    std::string path = parent + "/" + name;
    // This process may be killed at any time; a partly removed bundle must not look complete.
    if (is_bundle_directory(name)) {
      const std::string whole =
          std::exchange(path, parent + "/" + std::string(kHalfRemoved) + name);
      std::filesystem::rename(whole, path, error);
    }
    if (!error) std::filesystem::remove_all(path, error);
  }
}

}  // namespace ivy
