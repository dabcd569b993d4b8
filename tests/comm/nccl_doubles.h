// SPDX-License-Identifier: Apache-2.0
// The test doubles of CUDA and NCCL (nccl_double/) in a rank's process, and their counters.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/comm/device.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {

inline const std::string kDoubles = IVY_DOUBLES;
inline const std::string kCuda = kDoubles + "/libcuda_double.so";
inline const std::string kNccl = kDoubles + "/libnccl_double.so";

// Call it before any code of libivycomm runs in this process.
inline void use_doubles(const std::string& nccl = kNccl, const std::string& script = "") {
  setenv("IVY_CUDA_LIB", kCuda.c_str(), 1);
  setenv("IVY_NCCL_LIB", nccl.c_str(), 1);
  setenv("NCCL_DOUBLE", script.c_str(), 1);
}

inline int calls_of(const char* name) {
  void* const library = dlopen(kNccl.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  const auto count = reinterpret_cast<int (*)(const char*)>(dlsym(library, "nccl_double_count"));
  return count(name);
}

inline ivy_call call_with_factor(double factor) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.factor = factor;
  return call;
}

// Expects that finalize succeeds without an abort, and that every driver call had a context,
// although the finalizing thread has none.
inline void expect_clean_end(World& world) {
  void* const library = dlopen(kCuda.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto set_current = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
  const auto missed = reinterpret_cast<int (*)()>(dlsym(library, "cuda_double_contexts_missed"));
  EXPECT_EQ(set_current(nullptr), 0);
  EXPECT_EQ(world.finalize(), IVY_OK) << ivy_last_error();
  EXPECT_EQ(calls_of("ncclCommFinalize"), 1);
  EXPECT_EQ(calls_of("ncclCommDestroy"), 1);
  EXPECT_EQ(calls_of("ncclCommAbort"), 0);
  EXPECT_EQ(missed(), 0);
}

inline std::vector<char> floats(std::size_t count, float value) {
  const std::vector<float> all(count, value);
  const char* const bytes = reinterpret_cast<const char*>(all.data());
  return {bytes, bytes + count * sizeof(float)};
}

inline void all_reduce_ones(ivy_comm* comm, Device& device, int size) {
  const std::vector<float> ones(100, 1.0F);
  std::vector<char> bytes(ones.size() * sizeof(float));
  std::memcpy(bytes.data(), ones.data(), bytes.size());
  const DeviceArray on(device, bytes);
  ASSERT_EQ(ivy_all_reduce(comm, IVY_IN_PLACE, on.data(), ones.size(), IVY_F32, IVY_SUM, nullptr),
            IVY_OK)
      << ivy_last_error();
  bytes = on.bytes();
  std::vector<float> sums(ones.size());
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  EXPECT_EQ(sums, std::vector<float>(ones.size(), static_cast<float>(size)));
}

// Runs a world in which each rank has a device of the test double. `body` gets both.
template <class Body>
void on_devices(const Hosts& hosts, Body body) {
  expect_ok(run_world(hosts, [&](int rank) {
    use_doubles();
    Device device(kCuda, rank);
    World world;
    if (world) body(rank, world, device);
  }));
}

struct Board {
  std::atomic<std::int64_t> died_ms{0};
};

}  // namespace ivy::comm::test
