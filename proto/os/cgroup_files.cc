// SPDX-License-Identifier: Apache-2.0
#include "proto/os/cgroup_files.h"

#include <algorithm>
#include <charconv>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxFileBytes = 4u << 20;

std::string content_of(const std::string& path) {
  return read_file(path, kMaxFileBytes).value_or("");
}

// mountinfo encodes blank, tab, newline and backslash as three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const bool is_escape =
        text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8).ptr ==
            text.data() + i + 4;
    out += is_escape ? static_cast<char>(value) : text[i];
    if (is_escape) i += 3;
  }
  return out;
}

struct Mount {
  std::string root;   // The part of the hierarchy that is mounted.
  std::string point;  // The directory on which it is mounted.
};

// Returns the mounts of a file system type whose super options contain `option`, or all mounts of
// that type if `option` is empty.
std::vector<Mount> mounts_of(std::string_view mountinfo, std::string_view type,
                             std::string_view option) {
  constexpr std::size_t kRootField = 3;
  constexpr std::size_t kPointField = 4;
  std::vector<Mount> mounts;
  for (const std::string_view line : parts_of(mountinfo, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto before = parts_of(line.substr(0, dash), ' ');
    // The fields after " - " are the type, the source and the super options.
    const auto after = parts_of(line.substr(dash + 3), ' ');
    if (before.size() <= kPointField || after.size() < 3 || after[0] != type) continue;
    const auto options = parts_of(after[2], ',');
    if (!option.empty() && std::ranges::find(options, option) == options.end()) continue;
    mounts.push_back(Mount{unescape(before[kRootField]), unescape(before[kPointField])});
  }
  return mounts;
}

// Returns the path of this process's cgroup in the hierarchy of a controller, or in that of version
// 2 if `controller` is empty.
std::optional<std::string> path_in_hierarchy(std::string_view cgroup, std::string_view controller) {
  for (const std::string_view line : parts_of(cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    const auto controllers = parts_of(names, ',');
    const bool matches = controller.empty()
                             ? line.substr(0, first) == "0" && names.empty()
                             : std::ranges::find(controllers, controller) != controllers.end();
    if (matches) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

std::optional<std::string> visible_directory(const std::vector<Mount>& mounts,
                                             const std::string& path) {
  // A path with ".." lies outside this cgroup namespace and is not visible below any mount.
  if (path.find("/..") != std::string::npos) return std::nullopt;
  for (const Mount& mount : mounts) {
    if (mount.root == "/") return path == "/" ? mount.point : mount.point + path;
    if (path == mount.root) return mount.point;
    if (path.starts_with(mount.root + "/")) return mount.point + path.substr(mount.root.size());
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> cgroup_v2_directory(std::string_view mountinfo,
                                               std::string_view cgroup) {
  const auto path = path_in_hierarchy(cgroup, "");
  if (!path) return std::nullopt;
  return visible_directory(mounts_of(mountinfo, "cgroup2", ""), *path);
}

std::optional<std::string> cgroup_v1_directory(std::string_view mountinfo, std::string_view cgroup,
                                               std::string_view controller) {
  const auto path = path_in_hierarchy(cgroup, controller);
  if (!path) return std::nullopt;
  return visible_directory(mounts_of(mountinfo, "cgroup", controller), *path);
}

std::optional<long> read_cgroup_counter(const std::string& file, std::string_view key) {
  const std::string text = content_of(file);
  for (const std::string_view line : parts_of(text, '\n')) {
    const auto words = parts_of(line, ' ');
    if (words.size() != 2 || words[0] != key) continue;
    long value = 0;
    const auto parsed = std::from_chars(words[1].data(), words[1].data() + words[1].size(), value);
    if (parsed.ec == std::errc()) return value;
  }
  return std::nullopt;
}

long surrounding_memory_kills() {
  const std::string mountinfo = content_of("/proc/self/mountinfo");
  const std::string cgroup = content_of("/proc/self/cgroup");
  if (const auto v1 = cgroup_v1_directory(mountinfo, cgroup, "memory")) {
    const auto kills = read_cgroup_counter(*v1 + "/memory.oom_control", "oom_kill");
    if (kills) return *kills;
  }
  if (const auto v2 = cgroup_v2_directory(mountinfo, cgroup)) {
    const auto kills = read_cgroup_counter(*v2 + "/memory.events", "oom_kill");
    if (kills) return *kills;
  }
  return read_cgroup_counter("/proc/vmstat", "oom_kill").value_or(-1);
}

namespace {

// Reads one number from a file. Returns nothing if the file does not exist or says "max".
std::optional<std::uint64_t> read_number(const std::string& file) {
  const std::string text = content_of(file);
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::uint64_t left_in(const std::string& directory, const char* limit_file, const char* usage_file,
                      const std::string& prefix) {
  const auto limit = read_number(directory + limit_file);
  const auto usage = read_number(directory + usage_file);
  if (!limit || !usage) return ~std::uint64_t{0};
  std::uint64_t reclaimable = 0;
  for (const char* key : {"inactive_file", "active_file"}) {
    const long bytes = read_cgroup_counter(directory + "/memory.stat", prefix + key).value_or(0);
    reclaimable += static_cast<std::uint64_t>(std::max(bytes, 0L));
  }
  const std::uint64_t taken = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, taken);
}

}  // namespace

std::uint64_t memory_left_below_limits(const std::string& directory) {
  std::uint64_t left = ~std::uint64_t{0};
  for (std::string at = directory; !at.empty(); at.resize(at.rfind('/'))) {
    left = std::min(left, left_in(at, "/memory.max", "/memory.current", ""));
    left =
        std::min(left, left_in(at, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"));
    if (at.find('/') == std::string::npos) break;
  }
  return left;
}

std::uint64_t surrounding_memory_left() {
  const std::string mountinfo = content_of("/proc/self/mountinfo");
  const std::string cgroup = content_of("/proc/self/cgroup");
  std::uint64_t left = ~std::uint64_t{0};
  if (const auto v1 = cgroup_v1_directory(mountinfo, cgroup, "memory"))
    left = std::min(left, memory_left_below_limits(*v1));
  if (const auto v2 = cgroup_v2_directory(mountinfo, cgroup))
    left = std::min(left, memory_left_below_limits(*v2));
  return left;
}

std::optional<std::string> own_cgroup_v2_directory() {
  return cgroup_v2_directory(content_of("/proc/self/mountinfo"), content_of("/proc/self/cgroup"));
}

std::vector<pid_t> pids_in_cgroup(const std::string& directory) {
  std::vector<pid_t> pids;
  const std::string text = content_of(directory + "/cgroup.procs");
  for (const std::string_view line : parts_of(text, '\n')) {
    pid_t pid = 0;
    std::from_chars(line.data(), line.data() + line.size(), pid);
    pids.push_back(pid);
  }
  return pids;
}

}  // namespace ivy
