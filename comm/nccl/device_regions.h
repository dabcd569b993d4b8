// SPDX-License-Identifier: Apache-2.0
// Device memory that this library allocates (ivy_mem_alloc_device): by ncclMemAlloc if NCCL has it
// (2.19), else by the driver. A communicator registers a region with its NCCL when an operation
// first uses it, so that NCCL moves the data without extra copies. The region is deregistered when
// it is freed or the communicator ends.
//
// Thread: any. Lifetime: a region lives until release(), also beyond the world.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/nccl/abi.h"
#include "comm/nccl/operation.h"
#include "proto/contract/status.h"

namespace ivy::comm::nccl {

class EnqueuedOperations;

struct DeviceRegion {
  void* memory = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  std::uint32_t serial = 0;  // Distinguishes regions: addresses are reused.
  bool is_nccls = false;     // Allocated by ncclMemAlloc, not by the driver.
};

// The regions that one communicator has registered. `mutex` is the communicator's mutex for calls
// of NCCL.
class RegisteredRegions {
 public:
  // `enqueued` contains the operations that may use a region. It must live until close().
  explicit RegisteredRegions(EnqueuedOperations& enqueued) : enqueued_(&enqueued) {}
  RegisteredRegions(const RegisteredRegions&) = delete;
  RegisteredRegions& operator=(const RegisteredRegions&) = delete;

  std::mutex mutex;

  // Registers the regions that are not registered yet. Memory that NCCL does not accept is used
  // without a registration. Requires `mutex`.
  void use(const Functions& nccl, Handle handle, const std::vector<DeviceRegion>& regions);
  // `window` is the result of ncclCommWindowRegister. It is null, which is not an error, if this
  // NCCL or device has no windows. Requires `mutex`.
  void add_window(const Functions& nccl, Handle handle, const DeviceRegion& region, void* window);
  // Deregisters all regions. Call before NCCL's finalize. Requires `mutex`.
  void end();
  // Call before an abort: NCCL then deregisters all regions itself.
  void forget() { is_closed_ = true; }
  // Call when the owner is destroyed. No operation may be running.
  void close();
  // Waits until no operation uses the region, and deregisters it.
  void drop(std::uint32_t serial);

 private:
  struct Entry {
    const Functions* nccl;
    Handle handle;
    void* buffer;  // NCCL's registration; null if NCCL has rejected the memory.
    void* window;  // Null if the region is no window.
  };
  static void deregister(const Entry& entry);
  bool may_run(std::uint32_t serial);

  std::atomic<bool> is_closed_{false};      // The handle is aborted or about to be.
  std::map<std::uint32_t, Entry> entries_;  // By serial; guarded by `mutex`.
  std::mutex closing_;
  EnqueuedOperations* enqueued_;  // Null after close(). Guarded by closing_.
};

namespace device_regions {

// Allocates memory on `device`, or on the thread's current device if `device` is negative. Returns
// ResourceExhausted if the device has not enough memory, FailedPrecondition if there is no device,
// and DeadlineExceeded if the driver or NCCL did not return, which taints the process.
Result<void*> allocate(int device, std::size_t bytes,
                       std::chrono::steady_clock::time_point deadline);
// Waits until the operations that use a region are done, and frees it. Returns false if `memory` is
// not the start of a region.
bool release(void* memory);

// Adds a user: release() deregisters each region there before it frees the memory.
void add_user(const std::shared_ptr<RegisteredRegions>& user);
// Returns the regions that contain buffers of the operation, each once.
std::vector<DeviceRegion> regions_of(const DeviceOperation& operation);
// Returns the region that starts at `memory`, or nothing.
std::optional<DeviceRegion> region_at(const void* memory);

}  // namespace device_regions
}  // namespace ivy::comm::nccl
