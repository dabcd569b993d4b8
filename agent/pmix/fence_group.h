// Which hosts meet in a fence, and under which name. Every host computes the same from the ranks
// that take part, whatever their order. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/pmix/job_layout.h"
#include "proto/contract/status.h"

namespace ivy {

struct FenceGroup {
  std::vector<std::uint32_t> hosts;
  std::string name;  // Without '/'; empty: the whole job, as PMIx's wildcard says it.
};

// InvalidArgument: a rank that the job does not have. No ranks: the whole job.
Result<FenceGroup> fence_group(const JobLayout& layout, std::vector<std::uint32_t> ranks);

}  // namespace ivy
