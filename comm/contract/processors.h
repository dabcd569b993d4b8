// Whether the ranks of one machine can all run at once: only then does waiting spin.
//
// Pure but for own_processors() and own_quotas(). Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/contract/core_list.h"

namespace ivy::comm {

// The processors that this process may run on.
CoreList own_processors();

// True if every rank can have a processor of its own (each may run on those of its list). An empty
// list means that nothing is known of that rank; it then counts as one without a processor.
bool have_processor_each(const std::vector<CoreList>& ranks);

// The number of processors that any of the ranks may run on.
std::size_t count_processors(const std::vector<CoreList>& ranks);

// True if there are more than two ranks for each of those processors.
bool are_crowded(const std::vector<CoreList>& ranks);

// Processor time that the processes of a cgroup share: 0.5 is half of a processor's.
struct Quota {
  std::string group;  // Which one of this machine: "25:4711", by its directory's device and inode.
  double processors = 0;

  bool operator==(const Quota&) const = default;
};
using Quotas = std::vector<Quota>;

// The quotas of all cgroups that this process is in and can see. `root`: of the file system.
Quotas own_quotas(const std::string& root = "");

// "25:4711=0.500,25:1=8.000"; what is no such list is empty.
std::string quotas_text(const Quotas& quotas);
Quotas quotas_from(const std::string& text);

// True if every group has a processor's time for each of its ranks. Otherwise a spinning rank uses
// up the time of those that it waits for, and then the kernel throttles all of them for a while.
bool have_quota_each(const std::vector<Quotas>& ranks);

// As above, by the groups' processor time.
bool are_crowded(const std::vector<Quotas>& ranks);

}  // namespace ivy::comm
