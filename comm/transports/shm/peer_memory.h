// SPDX-License-Identifier: Apache-2.0
// How this process reaches the memory of the other ranks of its host, which it only ever reads:
// what is registered by mapping it, all else by process_vm_readv, which copies once, through the
// kernel (about 0.1 µs for each page).
//
// Neither is permitted everywhere: other users, other process namespaces, Yama's ptrace_scope,
// sandboxes. try_out() finds out, by a value that only the right process has at that place.
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
  // This process's own, to be shown. `segment` is the descriptor of the memory that all share.
  Probe own_probe(int segment) const;
  // True if that process is who it says and its memory can be read.
  static bool can_read(const Probe& theirs);
  // Tests which methods work towards that process: kCanRead, kCanMap.
  std::uint64_t try_out(const Probe& theirs, int segment) const;

  // 0, or the number of the system's error; EIO where only a part was there.
  static int read(std::int32_t pid, void* to, std::uint64_t address, std::size_t bytes);

  // Returns the address of a registered buffer in this process; null: it cannot be mapped. Valid
  // until trim(), which unmaps the oldest beyond kMappingsMax.
  const std::uint8_t* map(std::int32_t pid, const BufferPlace& place);
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
  std::deque<Mapping> mappings_;  // Begins with the oldest one.
};

}  // namespace ivy::comm
