// SPDX-License-Identifier: Apache-2.0
// The hosts that take part in a fence, and the name of their group. Every host derives the same
// from the participating ranks, whatever their order. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/pmix/job_layout.h"
#include "proto/contract/status.h"

namespace ivy {

struct FenceGroup {
  std::vector<std::uint32_t> hosts;
  std::string name;      // Without '/'; empty: the whole job, as PMIx's wildcard says it.
  bool is_last = false;  // It will not meet again, so that nothing of it need be kept.
};

// InvalidArgument: a rank that the job does not have. No ranks: the whole job.
Result<FenceGroup> fence_group(const JobLayout& layout, std::vector<std::uint32_t> ranks);
// The same ranks meet apart under each id, since threads may make groups in any order.
Result<FenceGroup> named_group(const JobLayout& layout, std::vector<std::uint32_t> ranks,
                               std::string_view id);

}  // namespace ivy
