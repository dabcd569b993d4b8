// SPDX-License-Identifier: Apache-2.0
// Determines the processor time that cgroups allow this process. Thread: any; reads files.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Processor time shared by the processes of a cgroup: 0.5 is half of one processor.
struct Quota {
  std::string group;  // Device and inode of the cgroup's directory: "25:4711".
  double processors = 0;

  bool operator==(const Quota&) const = default;
};
using Quotas = std::vector<Quota>;

// Returns the quotas of all visible cgroups of this process. `root` is a prefix of file paths, for
// tests.
Quotas own_quotas(const std::string& root = "");

// Returns the smallest quota in processors, or 0 if there is none.
double own_processor_quota();

}  // namespace ivy
