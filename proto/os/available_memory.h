// SPDX-License-Identifier: Apache-2.0
// Measures the memory that is still available. Thread: any; reads files.
#pragma once

#include <cstdint>

namespace ivy {

// Returns the memory that this process can still use without swapping: the machine's MemAvailable,
// limited by the memory limits of the process's cgroups, or ~0 if unknown. Reserving more would not
// fail but trigger the kernel's out-of-memory killer.
std::uint64_t available_memory_bytes();

}  // namespace ivy
