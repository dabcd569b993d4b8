// SPDX-License-Identifier: Apache-2.0
#include "comm/api/c_device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "comm/nccl/device_regions.h"
#include "comm/nccl/library.h"
#include "proto/os/clock.h"

namespace ivy::comm::c_interface {
namespace {

// A caller that was compiled before these fields existed has not set them.
bool has_device_fields(const ivy_call* call) {
  return call != nullptr && call->struct_bytes >= offsetof(ivy_call, flags) + sizeof call->flags;
}

bool has_flag(const ivy_call* call, std::uint64_t flag) {
  return has_device_fields(call) && (call->flags & flag) != 0;
}

std::string name_of(const void* buffer, const std::optional<nccl::DeviceMemory>& memory) {
  char text[64];
  if (memory) {
    std::snprintf(text, sizeof text, "%p is memory of device %d", buffer, memory->device);
  } else {
    std::snprintf(text, sizeof text, "%p is host memory", buffer);
  }
  return text;
}

int find_by_driver(const nccl::Driver& driver, std::initializer_list<const void*> buffers,
                   bool is_declared, LocatedBuffers& placed) {
  const void* first = nullptr;
  std::optional<nccl::DeviceMemory> first_memory;
  for (const void* const buffer : buffers) {
    if (buffer == nullptr || buffer == first) continue;
    const std::optional<nccl::DeviceMemory> memory = driver.device_memory(buffer);
    if (first == nullptr) {
      first = buffer;
      first_memory = memory;
    } else if (memory.has_value() != first_memory.has_value() ||
               (memory && memory->device != first_memory->device)) {
      return invalid("all buffers of a call must be in the same memory: " +
                     name_of(first, first_memory) + ", " + name_of(buffer, memory));
    }
  }
  if (is_declared && first != nullptr && !first_memory) {
    return invalid("IVY_DEVICE_MEMORY is set, but " + name_of(first, first_memory));
  }
  placed.is_device = first_memory.has_value() || is_declared;
  placed.device = first_memory ? first_memory->device : driver.current_device();
  return IVY_OK;
}

// Reports why the device that the caller named cannot be used.
[[gnu::cold, gnu::noinline]] int reject_device(const ivy_call* call, bool has_field) {
  if (!has_field) {
    return invalid(
        "IVY_ON_DEVICE is set, but ivy_call.struct_bytes does not include the field `device`");
  }
  return invalid("IVY_ON_DEVICE is set, but ivy_call.device is " + std::to_string(call->device));
}

[[gnu::cold, gnu::noinline]] int start_driver() {
  const Result<const nccl::Driver*> loaded = nccl::Driver::load();
  return loaded.ok() ? IVY_OK : fail(loaded.error());
}

int believe(const ivy_call* call, LocatedBuffers& placed) {
  const bool has_field = call->struct_bytes >= offsetof(ivy_call, device) + sizeof call->device;
  if (!has_field || call->device < 0) return reject_device(call, has_field);
  if (nccl::Driver::in_use() == nullptr) IVY_CHECKED(start_driver());
  placed.is_device = true;
  placed.device = call->device;
  return IVY_OK;
}

// Returns the start of this process's heap, from which malloc takes small memory.
std::uintptr_t heap_begin() {
  // Field 47 of the line. Field 2, the program's name, is in brackets and may contain blanks.
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream values(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string value;
  for (int field = 3; field <= 47 && values >> value; ++field) {
  }
  const std::uintptr_t begin = values ? std::strtoull(value.c_str(), nullptr, 10) : 0;
  return begin == 0 ? UINTPTR_MAX : begin;
}

// Returns whether all buffers are in the heap, which never contains device memory. Then the driver
// need not be queried: even checking whether one is in use takes longer than a small message.
bool are_in_heap(std::initializer_list<const void*> buffers) {
  static const std::uintptr_t begin = heap_begin();
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0));
  for (const void* const buffer : buffers) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    if (buffer != nullptr && buffer != IVY_IN_PLACE && (address < begin || address >= end)) {
      return false;
    }
  }
  return true;
}

}  // namespace

int find_memory(const ivy_call* call, std::initializer_list<const void*> buffers,
                LocatedBuffers& placed) {
  if (has_flag(call, IVY_ON_DEVICE)) return believe(call, placed);
  const bool is_declared = has_flag(call, IVY_DEVICE_MEMORY);
  if (!is_declared && are_in_heap(buffers)) return IVY_OK;
  const nccl::Driver* const driver = nccl::Driver::in_use();
  if (driver != nullptr) return find_by_driver(*driver, buffers, is_declared, placed);
  if (!is_declared) return IVY_OK;
  IVY_CHECKED(start_driver());
  return find_by_driver(*nccl::Driver::in_use(), buffers, is_declared, placed);
}

nccl::DeviceOperation LocatedBuffers::operation(Collective&& collective,
                                                const ivy_call* call) const {
  nccl::DeviceOperation operation{.collective = std::move(collective), .device = device};
  if (has_device_fields(call)) {
    operation.stream = call->stream;
    operation.is_enqueued = (call->flags & IVY_ENQUEUE) != 0;
  }
  return operation;
}

}  // namespace ivy::comm::c_interface

using namespace ivy::comm;               // NOLINT: the C interface of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

extern "C" int ivy_set_package_folders(const char* folders) {
  return guarded([&]() -> int {
    nccl::set_package_folders(folders != nullptr ? folders : "");
    return IVY_OK;
  });
}

extern "C" int ivy_prepare_device(ivy_comm* comm, int device, const ivy_call* call) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    if (device < 0) {
      // If no driver is in use, this thread has not chosen a device.
      const nccl::Driver* const driver = nccl::Driver::in_use();
      device = driver != nullptr ? driver->current_device() : 0;
    }
    nccl::DeviceRegion region;
    region.device = device;
    return finish(comm, call, comm->communicator->prepare_device(region, options_of(call)));
  });
}

extern "C" int ivy_mem_alloc_device(ivy_comm* comm, int device, size_t bytes, void** memory) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    if (memory == nullptr) return invalid("memory is NULL");
    // A driver that has not answered by then is abandoned.
    constexpr std::chrono::seconds kTimeout{120};
    const ivy::Result<void*> made =
        nccl::device_regions::allocate(device, bytes, ivy::steady_now() + kTimeout);
    if (!made.ok()) return fail(made.error());
    *memory = *made;
    return IVY_OK;
  });
}

extern "C" int ivy_mem_window(ivy_comm* comm, void* memory, const ivy_call* call) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    const std::optional<nccl::DeviceRegion> region = nccl::device_regions::region_at(memory);
    if (!region) return invalid("memory is not a pointer from ivy_mem_alloc_device");
    return finish(comm, call, comm->communicator->prepare_device(*region, options_of(call)));
  });
}
