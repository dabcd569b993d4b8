// SPDX-License-Identifier: Apache-2.0
// Compares our declarations of NCCL's binary interface (comm/nccl/abi.h) with NCCL's header at
// compile time, if that and CUDA's are installed.
#include <gtest/gtest.h>

#include "comm/nccl/abi.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#include <cstddef>

namespace ivy::comm::nccl {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId) && sizeof(ncclComm_t) == sizeof(Handle));
static_assert(ncclSuccess == kSuccess && ncclInProgress == kInProgress);
static_assert(ncclInt8 == static_cast<int>(Element::kI8) &&
              ncclUint8 == static_cast<int>(Element::kU8) &&
              ncclInt32 == static_cast<int>(Element::kI32) &&
              ncclUint32 == static_cast<int>(Element::kU32) &&
              ncclInt64 == static_cast<int>(Element::kI64) &&
              ncclUint64 == static_cast<int>(Element::kU64) &&
              ncclFloat16 == static_cast<int>(Element::kF16) &&
              ncclFloat32 == static_cast<int>(Element::kF32) &&
              ncclFloat64 == static_cast<int>(Element::kF64) &&
              ncclBfloat16 == static_cast<int>(Element::kBf16));
static_assert(ncclSum == static_cast<int>(Reduce::kSum) &&
              ncclProd == static_cast<int>(Reduce::kProduct) &&
              ncclMax == static_cast<int>(Reduce::kMax) &&
              ncclMin == static_cast<int>(Reduce::kMin) &&
              ncclAvg == static_cast<int>(Reduce::kAvg));
static_assert(offsetof(ncclConfig_t, size) == offsetof(Config, size) &&
              offsetof(ncclConfig_t, magic) == offsetof(Config, magic) &&
              offsetof(ncclConfig_t, version) == offsetof(Config, version) &&
              offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
static_assert(NCCL_SPLIT_NOCOLOR == kNoColor && NCCL_CONFIG_UNDEF_INT == INT_MIN);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
static_assert(offsetof(ncclConfig_t, cgaClusterSize) == offsetof(Config, cga_cluster_size) &&
              offsetof(ncclConfig_t, minCTAs) == offsetof(Config, min_ctas) &&
              offsetof(ncclConfig_t, maxCTAs) == offsetof(Config, max_ctas) &&
              offsetof(ncclConfig_t, netName) == offsetof(Config, net_name) &&
              offsetof(ncclConfig_t, splitShare) == offsetof(Config, split_share) &&
              offsetof(ncclConfig_t, trafficClass) == offsetof(Config, traffic_class) &&
              offsetof(ncclConfig_t, commName) == offsetof(Config, name));
#endif

}  // namespace
}  // namespace ivy::comm::nccl

#define HAS_NCCL_HEADER 1
#endif

namespace ivy::comm::nccl {
namespace {

TEST(NcclAbiTest, MatchesNcclsHeader) {
#ifdef HAS_NCCL_HEADER
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(theirs.magic, Config().magic);
#else
  GTEST_SKIP() << "nccl.h and cuda_runtime.h are not both installed";
#endif
}

}  // namespace
}  // namespace ivy::comm::nccl
