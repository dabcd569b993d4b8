// SPDX-License-Identifier: Apache-2.0
// Facts of this process and its host for preflight.h. Reads the environment, /sys and /dev/shm.
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/nccl/preflight.h"

namespace ivy::comm::nccl {

// Loads driver and library; errors are stored in `trouble`.
RankFacts collect_rank_facts(std::int32_t rank, const std::string& host, int device);

// True if systemd's logind removes the shared memory of this user's processes when the last session
// ends, though this process is in no session (RemoveIPC). Files below `root`.
bool may_lose_shared_memory(const std::filesystem::path& root, std::uint32_t user,
                            const std::string& user_name);

// NCCL's last warning in this process, if NCCL_DEBUG_FILE sends its log to a file (as ivyrun does);
// empty: none.
std::string own_nccl_warning();

}  // namespace ivy::comm::nccl
