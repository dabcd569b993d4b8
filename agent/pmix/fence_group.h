// SPDX-License-Identifier: Apache-2.0
// The hosts that take part in a fence, the name of their group, and the number of a group of ranks.
// Every host derives the same hosts and name from the participating ranks, whatever their order.
// Pure; thread: any.
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
  std::string name;      // Without '/'; empty for the whole job (PMIx's wildcard).
  bool is_last = false;  // No further fence of this group follows, so its data may be deleted.
};

// An empty list of ranks means the whole job. Returns InvalidArgument for a rank that is not in the
// job.
Result<FenceGroup> fence_group(const JobLayout& layout, std::vector<std::uint32_t> ranks);
// The same ranks form a separate group for each id, since threads may create groups in any order.
Result<FenceGroup> named_group(const JobLayout& layout, std::vector<std::uint32_t> ranks,
                               std::string_view id);

// The number on which the members of a group agree, PMIx's "context id". The first of the group's
// hosts chooses it and puts it at the start of its contribution to the group's fence. Not
// thread-safe.
class GroupContexts {
 public:
  // Returns a number that neither this nor any other host has returned before. Counts downwards
  // like Open MPI's own launcher, because the library itself counts upwards from 0.
  GroupContexts(std::uint32_t host, std::uint32_t hosts) : host_(host), hosts_(hosts) {}
  std::uint32_t next() { return UINT32_MAX - 1 - host_ - hosts_ * made_++; }

 private:
  const std::uint32_t host_;
  const std::uint32_t hosts_;
  std::uint32_t made_ = 0;
};

struct GroupResult {
  std::uint32_t context = 0;  // A number that no other group of the job gets.
  std::string data;           // The contributions of all hosts, concatenated.
};

// Returns the first host's contribution.
std::string with_context(std::uint32_t context, std::string_view data);
// Splits the contributions of all hosts. Returns Internal if they do not start with a number.
Result<GroupResult> group_result(std::string_view all);

}  // namespace ivy
