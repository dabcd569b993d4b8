// SPDX-License-Identifier: Apache-2.0
// Worlds of ranks on one real GPU, for gpu_test.cc and gpu_figures_test.cc.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "comm/nccl/abi.h"
#include "comm/nccl/library.h"
#include "tests/comm/device.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {

// Set to the test double's path to try these tests without a GPU.
inline const char* const kNamedDriver = std::getenv("IVY_CUDA_LIB");
inline const char* const kDriver = kNamedDriver != nullptr ? kNamedDriver : "libcuda.so.1";

// Returns the reason why nothing can be tested here, or an empty string.
inline std::string missing_requirement() {
  if (kNamedDriver == nullptr && access("/dev/nvidiactl", F_OK) != 0)
    return "there is no GPU: /dev/nvidiactl does not exist";
  void* const driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return std::string("there is no driver: ") + dlerror();
  const Result<const nccl::Library*> library = nccl::Library::load();
  return library.ok() ? "" : library.error().message;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = missing_requirement();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

// The two ways in which NCCL lets ranks share a GPU: explicitly, or as if they were on two hosts.
enum class Way { kMultiRank, kTwoHosts };

class SharedGpuTest : public GpuTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || GetParam() == Way::kTwoHosts) return;
    const int version = (*nccl::Library::load())->version();
    if (version < nccl::kMultiRank)
      GTEST_SKIP() << "NCCL " << nccl::version_text(version)
                   << " has no NCCL_MULTI_RANK_GPU_ENABLE (2.30)";
  }
};

// `channels` is the number of parts that NCCL moves at a time. A few start sooner; many move more
// data in each rank's turn on the GPU.
inline void share_gpu(int rank, Way way, int channels = 2) {
  setenv("NCCL_MAX_CTAS", std::to_string(channels).c_str(), 1);
  setenv("IVY_NCCL_TIMES", "1", 1);  // Prints the phases of init on standard error.
  if (way == Way::kMultiRank) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    return;
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  // Such ranks communicate over sockets; other adapters of a shared machine must not be used.
  setenv("NCCL_IB_DISABLE", "1", 1);
}

inline ivy_call call_with_factor(double factor) {
  ivy_call call = {};
  call.struct_bytes = sizeof call;
  call.factor = factor;
  return call;
}

inline WorldOptions long_timeout() {
  WorldOptions options;
  options.deadline = seconds(180);  // Loading NCCL's kernels takes many seconds.
  return options;
}

inline std::string name_of_way(const ::testing::TestParamInfo<Way>& tested) {
  return tested.param == Way::kMultiRank ? "MultiRank" : "TwoHosts";
}

}  // namespace ivy::comm::test
