#include "proto/os/processor_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "proto/os/cgroup_files.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Reads cpu.max: quota and period ("30000 100000"), or "max 100000" for no limit.
std::optional<double> quota_from(std::istream& words) {
  double quota = 0;
  double period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> quota_at(const std::string& directory, bool is_second) {
  std::ifstream quota(directory + (is_second ? "/cpu.max" : "/cpu.cfs_quota_us"));
  if (is_second) return quota_from(quota);
  std::ifstream period(directory + "/cpu.cfs_period_us");
  std::stringstream both;
  both << quota.rdbuf() << ' ' << period.rdbuf();
  return quota_from(both);
}

// The quotas of that cgroup and of those above it.
void add_quotas(const std::string& root, std::string directory, bool is_second, Quotas& quotas) {
  for (; !directory.empty(); directory.resize(directory.rfind('/'))) {
    const std::string path = root + directory;
    struct stat status = {};
    const std::optional<double> quota = quota_at(path, is_second);
    if (!quota || stat(path.c_str(), &status) != 0) continue;
    const std::string group = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
    // The same tree may be mounted in several places.
    const auto is_known = [&](const Quota& known) { return known.group == group; };
    if (std::none_of(quotas.begin(), quotas.end(), is_known)) quotas.push_back({group, *quota});
  }
}

}  // namespace

Quotas own_quotas(const std::string& root) {
  constexpr std::size_t kMostBytes = std::size_t{4} << 20;
  const std::string mountinfo = read_file(root + "/proc/self/mountinfo", kMostBytes).value_or("");
  const std::string cgroup = read_file(root + "/proc/self/cgroup", kMostBytes).value_or("");
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
