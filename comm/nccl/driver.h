// SPDX-License-Identifier: Apache-2.0
// The accelerator's driver in this process: libcuda, or HIP's runtime, which has the same functions
// under other names. Tells device memory from host memory, describes devices, and provides streams,
// events, copies and device memory. The library is opened with dlopen(). The driver suffices,
// because CUDA's runtime and torch themselves use it.
//
// IVY_CUDA_LIB is the path of another library.
//
// Thread: any. CUDA's "current device" is per thread (see Current). Lifetime: the process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/status.h"

namespace ivy::comm::nccl {

using Stream = void*;  // A cudaStream_t or hipStream_t. Null is the default stream.
using Event = void*;
using Context = void*;

struct DeviceMemory {
  int device = 0;  // The number that the device has in this process.
};

struct DeviceFacts {
  std::string uuid;  // As 32 hexadecimal digits, without dashes.
  std::string bus;   // Its PCI address, such as "0000:3b:00.0".
};

class Driver {
 public:
  // Returns the driver if the program has loaded and started it. Otherwise returns null, and no
  // pointer can be device memory. Takes some ten nanoseconds, so every operation may call it.
  static const Driver* in_use();
  // Loads and starts the driver. Returns FailedPrecondition with the reason if there is no driver
  // or if it finds no device.
  static Result<const Driver*> load();

  // Returns nothing if `pointer` is host memory, pinned or not.
  std::optional<DeviceMemory> device_memory(const void* pointer) const;
  int version() const { return version_; }  // In the driver's form: 13000 is 13.0.
  const std::string& path() const { return path_; }
  Result<int> device_count() const;
  Result<DeviceFacts> facts_of(int device) const;
  // Returns this thread's current device, or 0 if the thread has chosen none.
  int current_device() const;

  Result<Event> make_event() const;
  void free_event(Event event) const;
  Result<void> record(Event event, Stream stream) const;
  // Returns true if the device has done everything that preceded the event in its stream. An error
  // means that an earlier operation of the device failed; later calls return it, too.
  Result<bool> is_done(Event event) const;
  Result<Stream> make_stream() const;
  void free_stream(Stream stream) const;
  // Makes later work of the stream wait for the event. Does not block.
  Result<void> wait(Stream stream, Event event) const;
  // Returns false if the stream was created for another device.
  bool is_of_device(Stream stream, int device) const;
  // Returns true while operations that are put on the stream are recorded into a graph, not run.
  bool is_capturing(Stream stream) const;
  // From now on, this thread's driver calls do not invalidate captures by other threads.
  void stay_out_of_captures() const;
  // Put a copy on the stream, and do not wait for it.
  Result<void> copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const;
  Result<void> copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) const;
  Result<void> copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) const;
  // Allocates and frees memory of this thread's current device. The driver frees it when the device
  // has done the work that uses it.
  Result<void*> allocate(std::size_t bytes) const;
  void free(void* memory) const;

  // Makes a device this thread's current one until the end of the scope. Costs one driver call if
  // it already is.
  class Current {
   public:
    Current(const Driver& driver, int device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Result<void>& result() const { return result_; }

   private:
    const Driver& driver_;
    Context before_ = nullptr;
    bool is_changed_ = false;
    Result<void> result_;
  };

 private:
  struct Functions;
  Driver() = default;
  static Result<Driver*> open(bool only_if_mapped);
  static Result<Driver*> take(void* library, const std::string& path);
  Result<Context> context_of(int device) const;
  bool is_started() const;
  [[gnu::cold]] Error error(const char* what, int status) const;
  Result<void> done(const char* what, int status) const;

  static constexpr std::size_t kContextsKept = 64;
  const Functions* functions_ = nullptr;
  // The primary context of each device, or null if context_of() has not retained it yet.
  mutable std::array<std::atomic<Context>, kContextsKept> contexts_{};
  int version_ = 0;
  std::string path_;
  std::size_t column_ = 0;  // The column of names in driver_functions.def: 0 is CUDA's, 1 HIP's.
};

}  // namespace ivy::comm::nccl
