// What this process and its host are, for preflight.h. Reads the environment, /sys and /dev/shm.
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/nccl/preflight.h"

namespace ivy::comm::nccl {

// Loads driver and library; what fails there is `trouble`.
RankFacts own_facts(std::int32_t rank, const std::string& host, int device);

// Does systemd's logind remove the shared memory of this user's processes when his last session
// ends, though this process is in none of them (RemoveIPC)? Files below `root`.
bool may_lose_shared_memory(const std::filesystem::path& root, std::uint32_t user,
                            const std::string& user_name);

// What NCCL has warned of last in this process, where NCCL_DEBUG_FILE says that it goes to a file
// (ivyrun does); empty: nothing.
std::string own_nccl_warning();

}  // namespace ivy::comm::nccl
