// SPDX-License-Identifier: Apache-2.0
// A device for tests, through the functions of CUDA's driver: the test double's or a real one's.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ivy::comm::test {

class Device {
 public:
  // `library` is a path or "libcuda.so.1". The device becomes this thread's current one.
  Device(const std::string& library, int ordinal)
      : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    take(allocate_, "cuMemAlloc_v2");
    take(free_, "cuMemFree_v2");
    take(to_host_, "cuMemcpyDtoHAsync_v2");
    take(to_device_, "cuMemcpyHtoDAsync_v2");
    take(synchronize_, "cuStreamSynchronize");
    take(make_stream_, "cuStreamCreate");
    take(set_current_, "cuCtxSetCurrent");
    take(launch_, "cuLaunchHostFunc");
    int (*init)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    take(init, "cuInit");
    take(retain, "cuDevicePrimaryCtxRetain");
    is_available_ = init(0) == 0 && retain(&context_, ordinal) == 0 && make_current();
  }

  bool is_available() const { return is_available_; }
  bool make_current() { return set_current_(context_) == 0; }
  void* make_stream() {
    void* stream = nullptr;
    EXPECT_EQ(make_stream_(&stream, 1), 0);
    return stream;
  }
  int synchronize(void* stream) { return synchronize_(stream); }
  // Blocks the stream for `time`.
  void block(void* stream, std::chrono::milliseconds time) {
    const auto sleep = [](void* end) {
      const auto ms = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end));
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    };
    EXPECT_EQ(launch_(stream, sleep, reinterpret_cast<void*>(time.count())), 0);
  }

  void* allocate(std::size_t bytes) {
    std::uintptr_t pointer = 0;
    EXPECT_EQ(allocate_(&pointer, bytes == 0 ? 1 : bytes), 0);
    return reinterpret_cast<void*>(pointer);
  }
  void release(void* pointer) { EXPECT_EQ(free_(reinterpret_cast<std::uintptr_t>(pointer)), 0); }
  void write(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    EXPECT_EQ(to_device_(reinterpret_cast<std::uintptr_t>(to), from, bytes, nullptr), 0);
    EXPECT_EQ(synchronize_(nullptr), 0);
  }
  void read(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    EXPECT_EQ(to_host_(to, reinterpret_cast<std::uintptr_t>(from), bytes, nullptr), 0);
    EXPECT_EQ(synchronize_(nullptr), 0);
  }
  template <class Function>
  bool take(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    return function != nullptr;
  }

 private:
  void* const library_;
  void* context_ = nullptr;
  bool is_available_ = false;
  int (*allocate_)(std::uintptr_t*, std::size_t) = nullptr;
  int (*free_)(std::uintptr_t) = nullptr;
  int (*to_host_)(void*, std::uintptr_t, std::size_t, void*) = nullptr;
  int (*to_device_)(std::uintptr_t, const void*, std::size_t, void*) = nullptr;
  int (*synchronize_)(void*) = nullptr;
  int (*make_stream_)(void**, unsigned) = nullptr;
  int (*set_current_)(void*) = nullptr;
  int (*launch_)(void*, void (*)(void*), void*) = nullptr;
};

// Records a stream into a graph and launches the graph.
struct Graphs {
  int (*begin)(void*, int) = nullptr;
  int (*end)(void*, void**) = nullptr;
  int (*instantiate)(void**, void*, unsigned long long) = nullptr;
  int (*launch)(void*, void*) = nullptr;
  explicit Graphs(const Device& device) {
    device.take(begin, "cuStreamBeginCapture_v2");
    device.take(end, "cuStreamEndCapture");
    device.take(instantiate, "cuGraphInstantiateWithFlags");
    device.take(launch, "cuGraphLaunch");
  }
};

// An array of bytes on a device.
class DeviceArray {
 public:
  DeviceArray(Device& device, std::vector<char> bytes)
      : device_(device), size_(bytes.size()), data_(static_cast<char*>(device.allocate(size_))) {
    device.write(data_, bytes.data(), size_);
  }
  ~DeviceArray() { device_.release(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  char* data() const { return data_; }
  std::vector<char> bytes() const {
    std::vector<char> all(size_);
    device_.read(all.data(), data_, size_);
    return all;
  }

 private:
  Device& device_;
  const std::size_t size_;
  char* const data_;
};

}  // namespace ivy::comm::test
