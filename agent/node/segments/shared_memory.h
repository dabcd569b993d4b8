// SPDX-License-Identifier: Apache-2.0
// Anonymous memory that is handed to other processes by descriptor: it has no name, needs no
// removal, and is gone with the last process that has it. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// A memfd of that size, zeroed, sealed against shrinking, growing and further seals: no holder can
// make another's access a SIGBUS by truncating it. The name is for /proc only.
Result<int> make_shared_memory(const std::string& name, std::uint64_t bytes);

// Takes the pages of a part now. 0, or errno: ENOSPC or ENOMEM when there are none left.
int reserve_shared_memory(int fd, std::uint64_t from, std::uint64_t bytes);

// Wakes all waiters on this futex word, in any process that maps it.
void wake_futex(void* word);

}  // namespace ivy
