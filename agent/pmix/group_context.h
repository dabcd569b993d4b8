// SPDX-License-Identifier: Apache-2.0
// The number that the members of a group agree upon, a "context id" in PMIx's words. The first of
// the group's hosts chooses it and writes it before what it gives in the group's fence, and so it
// stands before what all have given. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/pmix/pmix_server.h"
#include "proto/contract/status.h"

namespace ivy {

// The numbers of one host, each of them once. Other hosts choose others. They count downwards, as
// Open MPI's own launcher does it: its library counts from 0 upwards.
class GroupContexts {
 public:
  GroupContexts(std::uint32_t host, std::uint32_t hosts) : host_(host), hosts_(hosts) {}
  std::uint32_t next() { return UINT32_MAX - 1 - host_ - hosts_ * made_++; }

 private:
  const std::uint32_t host_;
  const std::uint32_t hosts_;
  std::uint32_t made_ = 0;
};

// The first host's contribution.
std::string with_context(std::uint32_t context, std::string_view data);
// Internal: the text does not start with a number.
Result<GroupResult> group_result(std::string_view all);

}  // namespace ivy
