// What this process and its host are, for preflight.h. Reads the environment, /sys and /dev/shm.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "comm/nccl/preflight.h"

namespace ivy::comm::nccl {

// Loads driver and library; what fails there is `trouble`.
RankFacts own_facts(std::int32_t rank, const std::string& host, int device);

// What NCCL has warned of last in this process, where NCCL_DEBUG_FILE says that it goes to a file
// (ivyrun does); empty: nothing.
std::string own_nccl_warning();

}  // namespace ivy::comm::nccl
