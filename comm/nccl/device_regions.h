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
  bool is_nccls = false;     // It was given by ncclMemAlloc, not by the driver.
};

// The regions that one communicator has registered. `mutex` is the communicator's mutex for calls
// of NCCL.
class RegisteredRegions {
 public:
  // `enqueued`: the operations that may use a region; used until close().
  explicit RegisteredRegions(EnqueuedOperations& enqueued) : enqueued_(&enqueued) {}
  RegisteredRegions(const RegisteredRegions&) = delete;
  RegisteredRegions& operator=(const RegisteredRegions&) = delete;

  std::mutex mutex;

  // The next three require `mutex`. Memory that NCCL rejects is used as any other memory.
  void use(const Functions& nccl, Handle handle, const std::vector<DeviceRegion>& regions);
  // `window`: the result of ncclCommWindowRegister. Null is not an error: this NCCL or device has
  // no windows.
  void add_window(const Functions& nccl, Handle handle, const DeviceRegion& region, void* window);
  // Deregisters all. Call before NCCL's finalize.
  void end();
  // Call before an abort, which deregisters all itself.
  void forget() { is_gone_ = true; }
  // Call when the owner ends: no operation may be running.
  void close();
  // Waits until no operation uses the region, and deregisters it.
  void drop(std::uint32_t serial);

 private:
  struct Entry {
    const Functions* nccl;
    Handle handle;
    void* buffer;  // Null: NCCL has rejected it, or needs none.
    void* window;
  };
  static void deregister(const Entry& entry);
  bool may_run(std::uint32_t serial);

  std::atomic<bool> is_gone_{false};        // The handle is aborted or about to be.
  std::map<std::uint32_t, Entry> entries_;  // By serial; guarded by `mutex`.
  std::mutex closing_;
  EnqueuedOperations* enqueued_;  // Null: closed. Guarded by closing_.
};

namespace device_regions {

// ResourceExhausted: the device has not enough memory. FailedPrecondition: there is no device.
// DeadlineExceeded: the driver or NCCL did not return, and the process is tainted.
Result<void*> allocate(int device, std::size_t bytes,
                       std::chrono::steady_clock::time_point deadline);
// Waits until the operations that use it are done. False: `memory` is not the start of a region.
bool release(void* memory);

// From now on, release() also deregisters the region here.
void add_user(const std::shared_ptr<RegisteredRegions>& user);
// The regions in which buffers of the operation lie, each once.
std::vector<DeviceRegion> regions_of(const DeviceOperation& operation);
// Returns the region that starts there.
std::optional<DeviceRegion> region_at(const void* memory);

}  // namespace device_regions
}  // namespace ivy::comm::nccl
