// SPDX-License-Identifier: Apache-2.0
// Buffers that the other ranks of this host can map: what ivy_mem_alloc() gives. Each lies in a
// memory file of its own, which a peer opens by the owner's descriptor when it first needs it.
//
// Thread: any. Lifetime: until release(). When its world ends it is this process's own memory from
// then on: arrays of Python may outlive the world.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/contract/status.h"

namespace ivy::comm {

// Location of a buffer for other processes of this host.
struct BufferPlace {
  std::uint64_t address = 0;     // In the owner's address space.
  std::uint64_t offset = 0;      // Offset in the memory file.
  std::int32_t descriptor = -1;  // The owner's, of the memory file; negative: not registered.
  std::uint32_t serial = 0;      // Distinguishes memory files: descriptors are reused.

  bool is_registered() const { return descriptor >= 0; }
};

namespace registered_memory {

// `owner` identifies the world. ResourceExhausted: there is not so much memory, or kRegionsMax.
inline constexpr std::size_t kRegionsMax = 4096;  // Each of them keeps a descriptor open.
Result<void*> allocate(std::size_t bytes, const void* owner);
// Frees the memory at once, even if a peer has it mapped. False: `memory` is not the beginning of a
// region.
bool release(void* memory);
void unregister_all(const void* owner);

// The place of any buffer. It is registered only if all its bytes are in one region.
BufferPlace place_of(const void* buffer, std::size_t bytes);

}  // namespace registered_memory
}  // namespace ivy::comm
