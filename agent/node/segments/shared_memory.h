// SPDX-License-Identifier: Apache-2.0
// Anonymous memory that is passed to other processes as a descriptor. It has no name and is freed
// when the last process closes it. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// Creates a zeroed memfd of that size, sealed against shrinking, growing and further seals, so that
// no holder can cause a SIGBUS in another by truncating it. The name appears only in /proc.
Result<int> make_shared_memory(const std::string& name, std::uint64_t bytes);

// Reserves the pages of a range now. Returns 0, or ENOSPC or ENOMEM if none are left.
int reserve_shared_memory(int fd, std::uint64_t from, std::uint64_t bytes);

// Wakes all waiters on this futex word, in any process that maps it.
void wake_futex(void* word);

}  // namespace ivy
