// Memory that can still be taken. Thread: any; reads files.
#pragma once

#include <cstdint>

namespace ivy {

// The memory that this process could still take without swapping: what the machine has
// (MemAvailable), and what the memory limits of its cgroups allow; ~0 when unknown. Reserving more
// would not fail but wake the kernel's out-of-memory killer.
std::uint64_t available_memory_bytes();

}  // namespace ivy
