// Anonymous memory that is handed to other processes by descriptor: it has no name, nobody has to
// remove it, and it is gone with the last process that has it. Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

// A memfd of that size, zeroed, sealed against shrinking, growing and further seals: nobody who has
// it can make another's access a SIGBUS by cutting it. The name is for /proc only.
Result<int> make_shared_memory(const std::string& name, std::uint64_t bytes);

// Takes the pages of a part now. 0, or errno: ENOSPC or ENOMEM when there are none left.
int reserve_shared_memory(int fd, std::uint64_t from, std::uint64_t bytes);

// What this process could still take without swapping: of the machine (MemAvailable), and below the
// memory limits of its cgroups; ~0 when nobody says. Reserving more would not fail but wake the
// kernel's out-of-memory killer.
std::uint64_t available_memory_bytes();

// Wakes whoever waits for this futex word, in any process that maps it.
void wake_futex(void* word);

}  // namespace ivy
