// SPDX-License-Identifier: Apache-2.0
#include "agent/node/roles/fetch_search.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "proto/contract/text.h"
#include "proto/os/descriptor.h"

namespace ivy {
namespace {

// More is a search in the wrong place; the launcher prints only the first ones.
constexpr std::size_t kMaxProblems = 1000;

bool has_wildcard(std::string_view part) {
  return part.find_first_of("*?[\\") != std::string_view::npos;
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

// Returns an empty text if the path does not exist.
std::string physical(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? real.get() : "";
}

bool is_inside(const std::string& path, const std::string& directory) {
  if (directory.empty()) return false;
  if (directory == "/") return true;
  return path == directory || path.starts_with(directory + "/");
}

}  // namespace

FileSearch::FileSearch(std::string directory, std::size_t max_files, std::function<void()> on_entry)
    : directory_(std::move(directory)),
      max_files_(max_files),
      on_entry_(std::move(on_entry)),
      physical_directory_(physical(directory_)) {}

bool FileSearch::add(std::string_view pattern, std::uint32_t target) {
  Walk from;
  from.is_absolute = pattern.starts_with('/');
  from.target = target;
  for (const std::string_view part : parts_of(pattern, '/'))
    if (!part.empty() && part != ".") from.parts.emplace_back(part);
  std::string prefix;
  for (std::size_t i = 0; i + 1 < from.parts.size() && !has_wildcard(from.parts[i]); ++i)
    prefix = below(prefix, from.parts[i]);
  from.base = physical(absolute(from, prefix));
  has_match_ = false;
  walk(from, "", 0, true);
  return has_match_;
}

std::string FileSearch::absolute(const Walk& walk, const std::string& path) const {
  if (walk.is_absolute) return "/" + path;
  return path.empty() ? directory_ : directory_ + "/" + path;
}

std::vector<std::string> FileSearch::entries(const Walk& walk, const std::string& path) {
  std::vector<std::string> names;
  const OpenDirectory listing(opendir(absolute(walk, path).c_str()));
  if (!listing) {
    if (errno != ENOENT && errno != ENOTDIR) report(absolute(walk, path), strerror(errno));
    return names;
  }
  errno = 0;
  while (const dirent* const entry = readdir(listing.get())) {
    on_entry_();
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) report(absolute(walk, path), strerror(errno));
  std::sort(names.begin(), names.end());
  return names;
}

// is_literal: the pattern names every part of `path` without wildcards since the last directory
// that a wildcard has found.
void FileSearch::walk(const Walk& from, const std::string& path, std::size_t index,
                      bool is_literal) {
  if (is_too_many_) return;
  if (index == from.parts.size()) return take(from, path, is_literal);
  const std::string& part = from.parts[index];
  if (part == "**") {
    if (index + 1 == from.parts.size()) return take_tree(from, path, false);
    walk(from, path, index + 1, is_literal);
    return descend(from, path, index);
  }
  if (!has_wildcard(part)) return walk(from, below(path, part), index + 1, is_literal);
  for (const std::string& name : entries(from, path)) {
    if (fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    const std::string entry = below(path, name);
    struct stat status {};
    if (index + 1 < from.parts.size()) {
      if (lstat(absolute(from, entry).c_str(), &status) != 0) continue;
      const bool is_link = S_ISLNK(status.st_mode);
      if (is_link && stat(absolute(from, entry).c_str(), &status) != 0) continue;
      if (!S_ISDIR(status.st_mode) || (is_link && !may_follow(from, entry))) continue;
    }
    walk(from, entry, index + 1, false);
  }
}

// "**": matches the rest of the pattern in each directory below.
void FileSearch::descend(const Walk& from, const std::string& path, std::size_t index) {
  for (const std::string& name : entries(from, path)) {
    struct stat status {};
    const std::string entry = below(path, name);
    if (name.starts_with('.') || is_too_many_ ||
        lstat(absolute(from, entry).c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
      continue;
    walk(from, entry, index + 1, false);
    descend(from, entry, index);
  }
}

void FileSearch::take(const Walk& from, const std::string& path, bool is_literal) {
  struct stat status {};
  const std::string name = absolute(from, path);
  if (lstat(name.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) report(absolute(from, path), strerror(errno));
    return;
  }
  if (S_ISLNK(status.st_mode)) {
    if (stat(name.c_str(), &status) != 0)
      return report(absolute(from, path), "is a symbolic link that leads nowhere");
    if (!is_literal && !may_follow(from, path)) return;
    if (!is_literal && S_ISDIR(status.st_mode)) return;
  }
  if (S_ISDIR(status.st_mode)) return take_tree(from, path, true);
  if (S_ISREG(status.st_mode))
    return take_file(from, path, static_cast<std::uint64_t>(status.st_size));
  if (is_literal) report(absolute(from, path), "is not a regular file");
}

void FileSearch::take_tree(const Walk& from, const std::string& path, bool with_hidden) {
  for (const std::string& name : entries(from, path)) {
    if (is_too_many_) return;
    if (!with_hidden && name.starts_with('.')) continue;
    struct stat status {};
    const std::string entry = below(path, name);
    if (lstat(absolute(from, entry).c_str(), &status) != 0) continue;
    if (S_ISDIR(status.st_mode)) {
      take_tree(from, entry, with_hidden);
    } else if (S_ISLNK(status.st_mode)) {
      take(from, entry, false);
    } else if (S_ISREG(status.st_mode)) {
      take_file(from, entry, static_cast<std::uint64_t>(status.st_size));
    }
  }
}

void FileSearch::take_file(const Walk& from, const std::string& path, std::uint64_t size) {
  has_match_ = true;
  if (!taken_.emplace(from.target, path).second) return;
  if (files_.size() == max_files_) {
    is_too_many_ = true;
    return;
  }
  files_.push_back({from.target, path, absolute(from, path)});
  bytes_ += size;
}

// A link that a wildcard has found.
bool FileSearch::may_follow(const Walk& from, const std::string& path) {
  const std::string leads_to = physical(absolute(from, path));
  if (leads_to.empty() || is_inside(leads_to, from.base) ||
      is_inside(leads_to, physical_directory_))
    return !leads_to.empty();
  report(absolute(from, path), "is a symbolic link to " + leads_to + ", outside of " + from.base +
                                   "; to fetch it, name its path in a pattern of its own");
  return false;
}

void FileSearch::report(const std::string& path, const std::string& why) {
  if (problems_.size() < kMaxProblems && reported_.insert(path).second)
    problems_.push_back({path, why});
}

}  // namespace ivy
