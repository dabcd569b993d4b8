// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/registered_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>

#include "comm/transports/shm/huge_pages.h"
#include "proto/os/available_memory.h"
#include "proto/os/files.h"

namespace ivy::comm::registered_memory {
namespace {

struct Region {
  std::size_t bytes = 0;
  int descriptor = -1;
  std::uint32_t serial = 0;
  const void* owner = nullptr;
};

struct Registry {
  std::mutex mutex;                          // Guards `regions`, `being_made` and `serials`.
  std::map<std::uintptr_t, Region> regions;  // Ordered by their start address.
  std::size_t being_made = 0;
  std::uint32_t serials = 0;
  std::atomic<std::size_t> count{0};  // Lets programs without regions skip the lock.
};

// Never destroyed, because a thread of the library may still use it while the process exits.
Registry& registry() {
  static auto* const one = new Registry;
  return *one;
}

void give_back(std::uintptr_t address, const Region& region) {
  // A peer that still has it mapped keeps the addresses, but not the memory. If it continues to
  // read there after an abort, it reads zeros.
  if (region.descriptor >= 0) {
    fallocate(region.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(region.bytes));
    close(region.descriptor);
  }
  munmap(reinterpret_cast<void*>(address), region.bytes);
}

Error no_room(const std::string& what, std::size_t bytes, int number) {
  Error error =
      errno_error(Code::kResourceExhausted,
                  what + " " + std::to_string(bytes) + " bytes of registered memory", number);
  error.fix = "give the job or container more memory, or register less";
  return error;
}

// Reserves every page now, so that a lack of memory is an error here and not a SIGBUS at the first
// access. Returns an errno, or 0.
int make_memory(int descriptor, std::size_t bytes, void*& memory) {
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return errno;
  memory = huge_pages::map(descriptor, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (memory == nullptr) return errno;
  huge_pages::fill(descriptor, memory, bytes);
  const int failed = reserve_space(descriptor, 0, bytes);
  // Pages not covered by huge pages are mapped now, or at the first access if this kernel cannot do
  // that.
  if (failed == 0) madvise(memory, bytes, MADV_POPULATE_WRITE);
  return failed;
}

struct NewRegion {
  Region region;
  void* memory = nullptr;
};

// Runs without the registry's lock, so that look-ups do not wait while pages are created.
Result<NewRegion> make_region(std::size_t whole, std::size_t bytes) {
  NewRegion made;
  made.region.bytes = whole;
  made.region.descriptor = memfd_create("ivycomm-buffer", MFD_CLOEXEC);
  if (made.region.descriptor < 0) {
    return errno_error(Code::kResourceExhausted, "memfd_create", errno);
  }
  const int failed = make_memory(made.region.descriptor, whole, made.memory);
  if (failed == 0) return made;
  if (made.memory != nullptr) munmap(made.memory, whole);
  close(made.region.descriptor);
  return no_room("reserve", bytes, failed);
}

Result<void> reserve_slot() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.regions.size() + all.being_made >= kRegionsMax) {
    return Error{Code::kResourceExhausted,
                 std::to_string(kRegionsMax) + " registered buffers are the limit of one process",
                 "free some with ivy_mem_free, or use parts of larger ones"};
  }
  ++all.being_made;
  return {};
}

}  // namespace

Result<void*> allocate(std::size_t bytes, const void* owner) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX / 2 || bytes > available_memory_bytes())
    return no_room("reserve", bytes, ENOMEM);
  const std::size_t whole = bytes == 0 ? page : (bytes + page - 1) / page * page;
  IVY_CHECK(reserve_slot());
  Result<NewRegion> made = make_region(whole, bytes);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  --all.being_made;
  if (!made.ok()) return made.error();
  made->region.owner = owner;
  made->region.serial = ++all.serials;
  all.regions.emplace(reinterpret_cast<std::uintptr_t>(made->memory), made->region);
  all.count.store(all.regions.size(), std::memory_order_release);
  return made->memory;
}

bool release(void* memory) {
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  const auto found = all.regions.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == all.regions.end()) return false;
  const auto [address, region] = *found;
  all.regions.erase(found);
  all.count.store(all.regions.size(), std::memory_order_release);
  lock.unlock();
  give_back(address, region);
  return true;
}

void unregister_all(const void* owner) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (auto& [address, region] : all.regions) {
    if (region.owner != owner || region.descriptor < 0) continue;
    close(region.descriptor);
    region.descriptor = -1;
  }
}

BufferLocation location_of(const void* buffer, std::size_t bytes) {
  BufferLocation location;
  location.address = reinterpret_cast<std::uintptr_t>(buffer);
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return location;
  const std::lock_guard lock(all.mutex);
  auto after = all.regions.upper_bound(location.address);
  if (after == all.regions.begin()) return location;
  const auto& [begin, region] = *std::prev(after);
  const std::uint64_t offset = location.address - begin;
  if (offset > region.bytes || bytes > region.bytes - offset) return location;
  location.offset = offset;
  location.descriptor = region.descriptor;
  location.serial = region.serial;
  return location;
}

}  // namespace ivy::comm::registered_memory
