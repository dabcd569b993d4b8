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

inline constexpr int kNoColor = -1;  // ncclCommSplit: in no new communicator.
// ncclCommShrink: whatever still runs on the parent is ended before.
inline constexpr int kShrinkAbort = 1;
// ncclCommWindowRegister: operations use the same place in the window on every rank.
inline constexpr int kSymmetric = 1;

// ncclDataType_t
enum class Element : int {
  kNone = -1,  // It has no such type.
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

// ncclConfig_t as it was in 2.14, and as far as the communicator's name, which came with 2.27. NCCL
// copies as many bytes as both sides know and gives everything newer than `version` its default.
struct Config {
  std::size_t size = 24;
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  // A call returns when the operation is on the stream. One that does not block costs a thread of
  // NCCL's for each operation, some 60 us; NCCL_COMM_BLOCKING=0 asks for it.
  int blocking = 1;
  int cga_cluster_size = INT_MIN;  // INT_MIN and null: not said.
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
