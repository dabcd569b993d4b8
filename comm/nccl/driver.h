// SPDX-License-Identifier: Apache-2.0
// The accelerator's driver of this process (libcuda; HIP's runtime has the same functions under its
// own names), by dlopen: is this memory a device's, streams, events, copies, who the device is.
// Only the driver's library is needed: it is what every runtime, CUDA's own and torch's, stands on.
//
// IVY_CUDA_LIB names another library (a path).
//
// Thread: any; CUDA's "current device" is per thread, see Current. Lifetime: the process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/status.h"

namespace ivy::comm::nccl {

using Stream = void*;  // cudaStream_t, hipStream_t. Null: the default stream.
using Event = void*;
using Context = void*;

struct DeviceMemory {
  int device = 0;  // As the process numbers them.
};

struct DeviceFacts {
  std::string uuid;  // As 32 hexadecimal digits, without dashes.
  std::string bus;   // Its PCI address, such as "0000:3b:00.0".
};

class Driver {
 public:
  // The driver, if the program has loaded and started it; null: it has not, and no pointer can be a
  // device's. Some ten nanoseconds where there is none, so every call may ask.
  static const Driver* in_use();
  // Loads and starts it. FailedPrecondition: there is none, or it finds no device; says why.
  static Result<const Driver*> load();

  // Nothing: host memory, pinned or not.
  std::optional<DeviceMemory> device_memory(const void* pointer) const;
  int version() const { return version_; }  // As the driver counts: 13000 is 13.0.
  const std::string& path() const { return path_; }
  Result<int> device_count() const;
  Result<DeviceFacts> facts_of(int device) const;
  // This thread's device; 0 if none was chosen.
  int current_device() const;

  Result<Event> make_event() const;
  void free_event(Event event) const;
  Result<void> record(Event event, Stream stream) const;
  // True: everything recorded before is done. An error is the device's: it sticks.
  Result<bool> is_done(Event event) const;
  Result<Stream> make_stream() const;
  void free_stream(Stream stream) const;
  Result<void> wait(Stream stream, Event event) const;
  // False: the stream was made for another device.
  bool is_of_device(Stream stream, int device) const;
  // True while what is put on the stream is recorded into a graph and not run.
  bool is_capturing(Stream stream) const;
  // From here on this thread's calls spoil no capture that other threads make.
  void stay_out_of_captures() const;
  // All three in the order of the stream.
  Result<void> copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const;
  Result<void> copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) const;
  Result<void> copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) const;
  // Memory of this thread's device; it is freed when the device has done what uses it.
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
  // The devices' primary contexts; null: not asked for yet.
  mutable std::array<std::atomic<Context>, kContextsKept> contexts_{};
  int version_ = 0;
  std::string path_;
  std::size_t column_ = 0;  // The column of function names: 0 CUDA's, 1 HIP's.
};

}  // namespace ivy::comm::nccl
