// SPDX-License-Identifier: Apache-2.0
// Decides whether the ranks of one machine can all run at the same time. Only then do waits spin.
//
// Pure except own_processors(). Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/contract/core_list.h"
#include "proto/os/processor_quota.h"

namespace ivy::comm {

// Returns the processors that this process may run on.
CoreList own_processors();

// Returns whether each rank can be assigned a different processor of its list. An empty list means
// unknown, and its rank counts as having no processor.
bool have_processor_each(const std::vector<CoreList>& ranks);

// Returns the number of processors that any of the ranks may use.
std::size_t count_processors(const std::vector<CoreList>& ranks);

// Returns whether there are more than two ranks per processor that they may use.
bool are_overloaded(const std::vector<CoreList>& ranks);

// Encodes quotas as text, such as "25:4711=0.500,25:1=8.000", and back. Malformed text parses as an
// empty list.
std::string quotas_text(const Quotas& quotas);
Quotas quotas_from(const std::string& text);

// Returns whether every cgroup's quota has a full processor's time for each of its ranks. Otherwise
// a spinning rank uses up the time of the ranks that it waits for, and the kernel throttles them
// all.
bool have_quota_each(const std::vector<Quotas>& ranks);

// Returns whether some cgroup has more than two ranks per processor of its quota.
bool are_overloaded(const std::vector<Quotas>& ranks);

}  // namespace ivy::comm
