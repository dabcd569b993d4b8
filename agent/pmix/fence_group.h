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
  std::string name;      // Without '/'; empty: the whole job, PMIx's wildcard.
  bool is_last = false;  // No further fence of this group follows, so its data may be deleted.
};

// InvalidArgument: a rank that the job does not have. No ranks: the whole job.
Result<FenceGroup> fence_group(const JobLayout& layout, std::vector<std::uint32_t> ranks);
// The same ranks form a separate group for each id, since threads may create groups in any order.
Result<FenceGroup> named_group(const JobLayout& layout, std::vector<std::uint32_t> ranks,
                               std::string_view id);

// The number on which the members of a group agree, a "context id" in PMIx: the first of the
// group's hosts chooses it and writes it in front of its contribution to the group's fence.
class GroupContexts {
 public:
  // The numbers of one host, each of them once. Other hosts choose others. They count downwards, as
  // in Open MPI's own launcher: its library counts from 0 upwards.
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
// Splits the contributions of all hosts. Internal: the text does not start with a number.
Result<GroupResult> group_result(std::string_view all);

}  // namespace ivy
