// SPDX-License-Identifier: Apache-2.0
// Memory of devices that this library gives (ivy_mem_alloc_device): NCCL's own where the library
// allocates (ncclMemAlloc, 2.19), else the driver's. A communicator registers a region with its
// NCCL when an operation first uses it, so that NCCL moves the data without copies of its own; the
// region is deregistered when it is freed, and where the communicator ends before that.
//
// Thread: any. Lifetime: a region lives until release(), also beyond the world.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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

struct DeviceRegion {
  void* memory = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  std::uint32_t serial = 0;  // Distinguishes regions: addresses are reused.
  bool is_nccls = false;     // It was given by ncclMemAlloc, not by the driver.
};

// The regions that one communicator has registered. `mutex` is the communicator's own for calls of
// NCCL: whoever holds it may register.
class RegisteredRegions {
 public:
  // `is_using`: whether an operation that uses a region may run.
  explicit RegisteredRegions(std::function<bool(std::uint32_t)> is_using)
      : is_using_(std::move(is_using)) {}
  RegisteredRegions(const RegisteredRegions&) = delete;
  RegisteredRegions& operator=(const RegisteredRegions&) = delete;

  std::mutex mutex;

  // The next three require `mutex`. Memory that NCCL rejects is used as any other memory.
  void use(const Functions& nccl, Handle handle, const std::vector<DeviceRegion>& regions);
  // `window`: what ncclCommWindowRegister gave; null: this NCCL or device has none, which is no
  // error.
  void add_window(const Functions& nccl, Handle handle, const DeviceRegion& region, void* window);
  // Before NCCL's finalize: deregisters all.
  void end();
  // Before an abort, which deregisters all itself.
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
  std::function<bool(std::uint32_t)> is_using_;  // Empty: closed. Guarded by closing_.
};

namespace device_regions {

// ResourceExhausted: the device has not so much memory. FailedPrecondition: there is no device.
// DeadlineExceeded: the driver or NCCL has not answered; the process is tainted then.
Result<void*> allocate(int device, std::size_t bytes,
                       std::chrono::steady_clock::time_point deadline);
// Waits until the operations that use it are done. False: `memory` is not the beginning of one.
bool release(void* memory);

// From here on, notifies the communicator's regions of every release().
void add_user(const std::shared_ptr<RegisteredRegions>& user);
// The regions in which buffers of the operation lie, each once.
std::vector<DeviceRegion> regions_of(const DeviceOperation& operation);
// Returns the region that starts there.
std::optional<DeviceRegion> region_at(const void* memory);

}  // namespace device_regions
}  // namespace ivy::comm::nccl
