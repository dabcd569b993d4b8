// SPDX-License-Identifier: Apache-2.0
// Collects the facts of this process and its host that preflight.h compares. Reads the environment,
// /proc, /sys and systemd's files, and loads the driver and NCCL. May block. Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/nccl/preflight.h"

namespace ivy::comm::nccl {

// Loads driver and library; errors are stored in `trouble`.
RankFacts collect_rank_facts(std::int32_t rank, const std::string& host, int device);

// Returns true if systemd's logind (RemoveIPC) removes this process's shared memory when the user's
// last session ends, because the process itself is in no session. Reads files below `root`.
bool may_have_shared_memory_removed(const std::filesystem::path& root, std::uint32_t user,
                                    const std::string& user_name);

// Returns NCCL's last warning in this process, or an empty text. Finds it only if NCCL_DEBUG_FILE
// directs NCCL's log to a file, as ivyrun does.
std::string own_nccl_warning();

}  // namespace ivy::comm::nccl
