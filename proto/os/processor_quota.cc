// SPDX-License-Identifier: Apache-2.0
#include "proto/os/processor_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/contract/text.h"
#include "proto/os/cgroup_files.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

// Does not use streams, which cost 0.1 ms, because every start of a job waits for the result.
std::string quota_text(const std::string& file) { return read_file(file, kMaxBytes).value_or(""); }

std::optional<std::int64_t> positive_word(std::string_view text, std::size_t index) {
  const std::vector<std::string_view> words = words_of(text);
  const auto number =
      index < words.size() ? to_number<std::int64_t>(words[index]) : std::optional<std::int64_t>();
  return number && *number > 0 ? number : std::nullopt;
}

// Adds the quotas of this cgroup and its ancestors: "30000 100000" or "max 100000" in cpu.max, or
// two files of version 1, with -1 for no limit.
void add_quotas(const std::string& root, std::string directory, bool is_second, Quotas& quotas) {
  for (; !directory.empty(); directory.resize(directory.rfind('/'))) {
    const std::string path = root + directory;
    const std::string text = quota_text(path + (is_second ? "/cpu.max" : "/cpu.cfs_quota_us"));
    // Every cgroup of version 1 has this file, so this directory is above the hierarchy.
    if (!is_second && text.empty()) return;
    const auto quota = positive_word(text, 0);
    if (!quota) continue;
    const auto period = is_second ? positive_word(text, 1)
                                  : positive_word(quota_text(path + "/cpu.cfs_period_us"), 0);
    struct stat status = {};
    if (!period || stat(path.c_str(), &status) != 0) continue;
    const std::string group = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
    // The same tree may be mounted at several locations.
    const auto is_known = [&](const Quota& known) { return known.group == group; };
    if (std::none_of(quotas.begin(), quotas.end(), is_known))
      quotas.push_back({group, static_cast<double>(*quota) / static_cast<double>(*period)});
  }
}

}  // namespace

Quotas own_quotas(const std::string& root) {
  const std::string mountinfo = quota_text(root + "/proc/self/mountinfo");
  const std::string cgroup = quota_text(root + "/proc/self/cgroup");
  Quotas quotas;
  if (const auto first = cgroup_v1_directory(mountinfo, cgroup, "cpu"))
    add_quotas(root, *first, false, quotas);
  if (const auto second = cgroup_v2_directory(mountinfo, cgroup))
    add_quotas(root, *second, true, quotas);
  return quotas;
}

double own_processor_quota() {
  double smallest = 0;
  for (const Quota& quota : own_quotas())
    smallest = smallest == 0 ? quota.processors : std::min(smallest, quota.processors);
  return smallest;
}

}  // namespace ivy
