// What this process and its host are, for preflight.h. Reads the environment, /sys and /dev/shm.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "comm/nccl/preflight.h"

namespace ivy::comm::nccl {

// Loads driver and library; what fails there is `trouble`.
RankFacts own_facts(std::int32_t rank, const std::string& host, int device);

}  // namespace ivy::comm::nccl
