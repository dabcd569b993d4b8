// May the ranks of one machine all run at once? Only then does waiting spin.
//
// Pure but for own_processors() and own_quotas(). Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ivy::comm {

// Numbers of processors, ascending.
using Processors = std::vector<std::uint32_t>;

// Those that this process may run on.
Processors own_processors();

// "0-3,8"; what is no such list is empty.
std::string processors_text(const Processors& processors);
Processors processors_from(const std::string& text);

// Is there an own processor for every rank (each may run on those of its list)? Empty list: nothing
// is known of that rank, and it counts as one that has none.
bool have_processor_each(const std::vector<Processors>& ranks);

// How many processors are there that any of the ranks may run on?
std::size_t count_processors(const std::vector<Processors>& ranks);

// Are there more than two ranks for each of those?
bool are_crowded(const std::vector<Processors>& ranks);

// Processor time that the processes of a cgroup share: 0.5 is half of a processor's.
struct Quota {
  std::string group;  // Which one of this machine: "25:4711", by its directory's device and inode.
  double processors = 0;

  bool operator==(const Quota&) const = default;
};
using Quotas = std::vector<Quota>;

// Of all groups that this process is in and can see. `root`: of the file system.
Quotas own_quotas(const std::string& root = "");

// "25:4711=0.500,25:1=8.000"; what is no such list is empty.
std::string quotas_text(const Quotas& quotas);
Quotas quotas_from(const std::string& text);

// Has every group the time of a processor for each of its ranks? Else whoever spins uses up what
// those need that it waits for, and then the kernel lets nobody of them run for a while.
bool have_quota_each(const std::vector<Quotas>& ranks);

// As above, by the time that a group has.
bool are_crowded(const std::vector<Quotas>& ranks);

}  // namespace ivy::comm
