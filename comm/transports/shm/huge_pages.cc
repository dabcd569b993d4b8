// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace ivy::comm::huge_pages {
namespace {

// <sys/mman.h> does not define it on Debian 12 and older systems.
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;
#endif

}  // namespace

void* map(int descriptor, std::size_t bytes, int protection, int flags) {
  const auto at = [&](void* address, int more) {
    void* const memory = mmap(address, bytes, protection, flags | more, descriptor, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  };
  if (bytes < kBytes) return at(nullptr, 0);
  // Reserve more room than needed, so that it contains an aligned address; the rest is unmapped.
  void* const room =
      mmap(nullptr, bytes + kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return at(nullptr, 0);
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t right = (begin + kBytes - 1) / kBytes * kBytes;
  const std::size_t before = right - begin;
  void* const memory = at(reinterpret_cast<void*>(right), MAP_FIXED);
  if (memory == nullptr) {
    munmap(room, bytes + kBytes);
    return nullptr;
  }
  if (before > 0) munmap(room, before);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t end = (right + bytes + page - 1) / page * page;
  if (end < begin + bytes + kBytes) {
    munmap(reinterpret_cast<void*>(end), begin + bytes + kBytes - end);
  }
  return memory;
}

void fill(int descriptor, void* memory, std::size_t bytes) {
  for (std::size_t begin = 0; bytes - begin >= kBytes; begin += kBytes) {
    // One small page must exist, or the kernel finds nothing to collapse. It is made by
    // fallocate(), because a store would kill the process if memory has run out.
    if (fallocate(descriptor, 0, static_cast<off_t>(begin), 1) != 0) return;
    if (madvise(static_cast<std::uint8_t*>(memory) + begin, kBytes, kCollapse) != 0) return;
  }
}

}  // namespace ivy::comm::huge_pages
