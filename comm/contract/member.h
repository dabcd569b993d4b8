// SPDX-License-Identifier: Apache-2.0
// Location and identity of a rank, as known to all ranks of its communicator.
#pragma once

#include <cstdint>
#include <string>

namespace ivy::comm {

struct Member {
  std::int32_t world_rank = 0;
  std::int32_t pid = 0;
  std::uint32_t host = 0;  // The host's number in the job; ranks with equal numbers share memory.
  std::string host_name;
  std::string address;  // Address of its listener; empty if all ranks are on one host.
  // The rank number that the launcher assigned, which may differ in a repaired world
  // (group/world/repair.h), and the number of times that rank was restarted before this process.
  std::uint32_t job_rank = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t process_start = 0;  // Start time as in process_state.h, or 0 if unknown.
};

}  // namespace ivy::comm
