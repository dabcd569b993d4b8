// SPDX-License-Identifier: Apache-2.0
// Buffers from ivy_mem_alloc(), which the other ranks of this host can map. Each has a separate
// memory file, which a peer opens through the owner's descriptor when it first needs it.
//
// Thread: any. Lifetime: until release(). When its world ends, a buffer becomes this process's own
// memory, because arrays in Python may outlive the world.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/contract/status.h"

namespace ivy::comm {

// Location of a buffer for other processes of this host.
struct BufferLocation {
  std::uint64_t address = 0;  // In the owner's address space.
  std::uint64_t offset = 0;   // Offset in the memory file.
  // The owner's descriptor of the memory file; negative if not registered.
  std::int32_t descriptor = -1;
  std::uint32_t serial = 0;  // Distinguishes memory files, because descriptors are reused.

  bool is_registered() const { return descriptor >= 0; }
};

namespace registered_memory {

inline constexpr std::size_t kRegionsMax = 4096;  // Each of them keeps a descriptor open.
// `owner` identifies the world. Fails with ResourceExhausted if there is not enough memory, or if
// kRegionsMax regions exist.
Result<void*> allocate(std::size_t bytes, const void* owner);
// Frees the memory immediately, even if a peer has it mapped. Returns false if `memory` is not the
// start of a region.
bool release(void* memory);
void unregister_all(const void* owner);

// Returns the location of any buffer. It is registered only if all its bytes are in one region.
BufferLocation location_of(const void* buffer, std::size_t bytes);

}  // namespace registered_memory
}  // namespace ivy::comm
