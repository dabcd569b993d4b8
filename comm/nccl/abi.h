// What this library has to know of NCCL's binary interface: our own words for it, so that nothing
// is needed to build. NCCL only ever appends to these; RCCL has the same.
// Source: NCCL's user guide and nccl.h of 2.14 to 2.30.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

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
  int blocking = 0;
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
  Status (*get_version)(int*) = nullptr;
  Status (*get_unique_id)(UniqueId*) = nullptr;
  Status (*init_rank_config)(Handle*, int size, UniqueId, int rank, Config*) = nullptr;
  Status (*finalize)(Handle) = nullptr;
  Status (*destroy)(Handle) = nullptr;
  Status (*abort)(Handle) = nullptr;
  Status (*get_async_error)(Handle, Status*) = nullptr;
  const char* (*get_error_string)(Status) = nullptr;
  const char* (*get_last_error)(Handle) = nullptr;
  Status (*group_start)() = nullptr;
  Status (*group_end)() = nullptr;
  Status (*all_reduce)(const void*, void*, std::size_t, Element, int op, Handle, void*) = nullptr;
  Status (*reduce)(const void*, void*, std::size_t, Element, int op, int root, Handle,
                   void*) = nullptr;
  Status (*broadcast)(const void*, void*, std::size_t, Element, int root, Handle, void*) = nullptr;
  Status (*all_gather)(const void*, void*, std::size_t, Element, Handle, void*) = nullptr;
  Status (*reduce_scatter)(const void*, void*, std::size_t, Element, int op, Handle,
                           void*) = nullptr;
  Status (*send)(const void*, std::size_t, Element, int peer, Handle, void*) = nullptr;
  Status (*receive)(void*, std::size_t, Element, int peer, Handle, void*) = nullptr;
  Status (*make_premul_sum)(int* op, void* factor, Element, int residence, Handle) = nullptr;
  Status (*free_op)(int op, Handle) = nullptr;

  // Null where the library is older.
  Status (*split)(Handle, int color, int key, Handle*, Config*) = nullptr;  // 2.18
  Status (*init_rank_scalable)(Handle*, int size, int rank, int ids, UniqueId*,
                               Config*) = nullptr;                                          // 2.23
  Status (*all_to_all)(const void*, void*, std::size_t, Element, Handle, void*) = nullptr;  // 2.28
  Status (*gather)(const void*, void*, std::size_t, Element, int root, Handle,
                   void*) = nullptr;  // 2.28
  Status (*scatter)(const void*, void*, std::size_t, Element, int root, Handle,
                    void*) = nullptr;  // 2.28
};

}  // namespace ivy::comm::nccl
