// SPDX-License-Identifier: Apache-2.0
// How this process reads the memory of the other ranks of its host. Registered memory is mapped;
// all other memory is copied once, through the kernel, by process_vm_readv (about 0.1 µs for each
// page). Nothing is ever written.
//
// Neither method is permitted everywhere: other users, other process namespaces, Yama's
// ptrace_scope, sandboxes. try_out() tests reads with a value that only the right process has at
// that address, and mappings by opening the communicator's segment through that process.
//
// Thread: one at a time (the communicator's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/transports/shm/registered_memory.h"

namespace ivy::comm {

// Published by a member so that others can test whether they can reach it.
struct Probe {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;  // The descriptor of the communicator's segment.
  std::uint64_t address = 0;     // Address of `value` in the prober's memory.
  std::uint64_t value = 0;
};

class PeerMemory {
 public:
  PeerMemory();
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  static constexpr std::uint64_t kCanRead = 1;
  static constexpr std::uint64_t kCanMap = 2;
  // Returns this process's own probe, to be published. `segment` is the descriptor of the memory
  // that all members share.
  Probe own_probe(int segment) const;
  // Returns whether that process is the one that published the probe, and its memory can be read.
  static bool can_read(const Probe& peer_probe);
  // Tests which methods work for that process: kCanRead, kCanMap.
  std::uint64_t try_out(const Probe& peer_probe, int segment) const;

  // Returns 0 or an errno; EIO if only a part could be read.
  static int read(std::int32_t pid, void* to, std::uint64_t address, std::size_t bytes);

  // Returns the address of a registered buffer in this process, or null if it cannot be mapped.
  // Valid until trim(), which unmaps the oldest mappings beyond kMappingsMax.
  const std::uint8_t* map(std::int32_t pid, const BufferLocation& location);
  void trim();

 private:
  static constexpr std::size_t kMappingsMax = 1024;
  struct Mapping {
    std::int32_t pid;
    std::uint32_t serial;
    std::uint8_t* memory;
    std::size_t bytes;
  };
  const std::uint64_t value_;
  std::deque<Mapping> mappings_;  // The oldest is first.
};

}  // namespace ivy::comm
