// Whether the ranks of one machine can all run at once: only then does waiting spin.
//
// Pure but for own_processors(). Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/contract/core_list.h"
#include "proto/os/processor_quota.h"

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

// "25:4711=0.500,25:1=8.000"; what is no such list is empty.
std::string quotas_text(const Quotas& quotas);
Quotas quotas_from(const std::string& text);

// True if every group has a processor's time for each of its ranks. Otherwise a spinning rank uses
// up the time of those that it waits for, and then the kernel throttles all of them for a while.
bool have_quota_each(const std::vector<Quotas>& ranks);

// As above, by the groups' processor time.
bool are_crowded(const std::vector<Quotas>& ranks);

}  // namespace ivy::comm
