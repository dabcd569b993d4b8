// Processor time that cgroups grant to this process. Thread: any; reads files.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Processor time that the processes of a cgroup share: 0.5 is half of a processor's.
struct Quota {
  std::string group;  // Which one of this machine: "25:4711", by its directory's device and inode.
  double processors = 0;

  bool operator==(const Quota&) const = default;
};
using Quotas = std::vector<Quota>;

// The quotas of all cgroups that this process is in and can see. `root`: of the file system.
Quotas own_quotas(const std::string& root = "");

// The smallest of them in processors, 0 without any quota.
double own_processor_quota();

}  // namespace ivy
