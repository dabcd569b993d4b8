// SPDX-License-Identifier: Apache-2.0
// NCCL's binary interface as far as this library uses it, declared independently so that NCCL is
// not needed to build. NCCL only ever appends to these structures; RCCL has the same. Source:
// NCCL's user guide and nccl.h of 2.14 to 2.30.
#pragma once

#include <climits>
#include <cstddef>
#include <type_traits>

namespace ivy::comm::nccl {

struct OpaqueCommunicator;
using Handle = OpaqueCommunicator*;

struct UniqueId {
  char bytes[128];
};

using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kInProgress = 7;

// The color for ncclCommSplit of a rank that joins no new communicator.
inline constexpr int kNoColor = -1;
// A flag of ncclCommShrink: it first ends the operations that still run on the parent.
inline constexpr int kShrinkAbort = 1;
// A flag of ncclCommWindowRegister: every rank uses the same offset in the window.
inline constexpr int kSymmetric = 1;

// ncclDataType_t
enum class Element : int {
  kNone = -1,  // NCCL has no such type.
  kI8 = 0,
  kU8 = 1,
  kI32 = 2,
  kU32 = 3,
  kI64 = 4,
  kU64 = 5,
  kF16 = 6,
  kF32 = 7,
  kF64 = 8,
  kBf16 = 9,
};

// ncclRedOp_t
enum class Reduce : int { kNone = -1, kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

// ncclConfig_t. Its size and version are those of NCCL 2.14 unless set_name() is called, which
// needs the layout of 2.27. NCCL reads at most `size` bytes and uses defaults for all fields that
// are newer than `version`.
struct Config {
  std::size_t size = 24;
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  // A blocking call returns when the operation is on the stream. For a non-blocking call, which
  // NCCL_COMM_BLOCKING=0 requests, NCCL starts a thread per operation, which takes some 60 us.
  int blocking = 1;
  // INT_MIN and null mean NCCL's default.
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* name = nullptr;

  void set_name(const char* text) {
    size = sizeof(Config);
    version = 22700;
    name = text;
  }
};
static_assert(offsetof(Config, min_ctas) == 24 && sizeof(Config) == 56);

struct Functions {
#define IVY_NCCL(member, name, is_required, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
#include "comm/nccl/functions.def"
};

}  // namespace ivy::comm::nccl
