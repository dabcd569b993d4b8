// SPDX-License-Identifier: Apache-2.0
// The interface between NCCL and a profiler plug-in, versions 1 (NCCL 2.23) to 7 (NCCL 2.32),
// declared independently and only as far as it is used here. NCCL takes the newest symbol
// ncclProfiler_vN that the library exports, calls `open` for every communicator, and then `start`,
// `record` and `stop` for the requested events.
//
// An event's description starts with the same fields in all versions: type, parent, rank, and a
// union whose members differ. It is NCCL's memory and is only valid during the call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ivy::nccl_profiler {

// ncclResult_t, in which 0 is success. The plug-in never returns an error, which would make NCCL
// disable profiling, or worse.
using NcclResult = int;
constexpr NcclResult kNcclSuccess = 0;

// Bits of the mask, and the type of an event.
constexpr std::uint64_t kCollectiveEvent = 1u << 1;
constexpr std::uint64_t kMessageEvent = 1u << 2;
constexpr std::uint64_t kProxyEvent = 1u << 3;
constexpr std::uint64_t kProxyStepEvent = 1u << 4;
constexpr std::uint64_t kKernelEvent = 1u << 6;
constexpr std::uint64_t kCopyCollectiveEvent = 1u << 12;  // By copy engines, version 6.

// States of a proxy's step, named as in NCCL's ncclProfilerProxyStep*. Only those that start or end
// a wait for the peer are listed.
constexpr int kStepSendPeerWait = 20;   // The peer has no room. Since version 4, at every check.
constexpr int kStepSendWait = 9;        // The peer had room: the data was passed to the network.
constexpr int kStepRecvWait = 10;       // Data of the peer is awaited.
constexpr int kStepRecvFlushWait = 11;  // The data has arrived.

// Versions 1 to 3. The name and the number of the communicator are passed with every operation.
struct CollectiveV1 {
  const char* communicator_name;
  std::uint64_t communicator_hash;
  std::uint64_t sequence;
  std::uint8_t function;  // 0 broadcast, 1 reduce, 2 all-gather, 3 reduce-scatter, 4 all-reduce...
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  std::uint8_t datatype;  // A number of ncclDataType_t, from 0: i8, u8, i32...
  std::uint32_t reduction;
  std::size_t traffic_bytes;
  std::uint8_t channels;
};
struct CollectiveV2 {
  const char* communicator_name;
  std::uint64_t communicator_hash;
  std::uint64_t sequence;
  const char* function;  // A word such as "AllReduce".
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  const char* datatype;  // A word such as "ncclFloat32".
  std::size_t traffic_bytes;
  std::uint8_t channels;
};
struct CollectiveV3 {
  const char* communicator_name;
  std::uint64_t communicator_hash;
  std::uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  const char* datatype;
  std::uint8_t channels;
};
// Versions 4 to 7. A collective by copy engines starts with the same fields and has no channels.
struct CollectiveV4 {
  std::uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  std::size_t count;
  int root;
  const char* datatype;
  std::uint8_t channels;
};

struct MessageV1 {
  const char* communicator_name;
  std::uint64_t communicator_hash;
  std::uint8_t function;  // 6 is a send, 7 a receive.
  void* buffer;
  std::uint8_t datatype;
  std::size_t count;
  int peer;
};
struct MessageV2 {
  const char* communicator_name;
  std::uint64_t communicator_hash;
  const char* function;
  void* buffer;
  const char* datatype;
  std::size_t count;
  int peer;
};
struct MessageV4 {
  const char* function;
  void* buffer;
  const char* datatype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
};

// The same in all versions.
struct Proxy {
  pid_t pid;  // Process of the operation: `parent` is an address in it.
  std::uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};
struct ProxyStep {
  int step;
};

template <class Type, class Collective, class Message>
struct Description {
  Type type;
  void* parent;
  int rank;
  union {
    Collective collective;
    Message message;
    Proxy proxy;
    ProxyStep step;
  };
};
using DescriptionV1 = Description<std::uint8_t, CollectiveV1, MessageV1>;
using DescriptionV2 = Description<std::uint8_t, CollectiveV2, MessageV2>;
using DescriptionV3 = Description<std::uint8_t, CollectiveV3, MessageV2>;
using DescriptionV4 = Description<std::uint8_t, CollectiveV4, MessageV4>;
using DescriptionV5 = Description<std::uint64_t, CollectiveV4, MessageV4>;
static_assert(offsetof(DescriptionV1, collective) == 24 && offsetof(DescriptionV1, type) == 0);
static_assert(offsetof(DescriptionV5, collective) == 24);

using LogFunction = void (*)(int level, unsigned long flags, const char* file, int line,
                             const char* format, ...);
using OpenV1 = NcclResult(void** context, int* mask);
using OpenV4 = NcclResult(void** context, int* mask, const char* name, std::uint64_t hash,
                          int nodes, int ranks, int rank, LogFunction log);
using OpenV5 = NcclResult(void** context, std::uint64_t hash, int* mask, const char* name,
                          int nodes, int ranks, int rank, LogFunction log);

// Type of the symbol ncclProfiler_vN.
template <class Open, class Described>
struct Plugin {
  const char* name;
  Open* open;
  NcclResult (*start)(void* context, void** handle, Described* description);
  NcclResult (*stop)(void* handle);
  NcclResult (*record)(void* handle, int state, void* arguments);
  NcclResult (*close)(void* context);
};
using PluginV1 = Plugin<OpenV1, DescriptionV1>;
using PluginV2 = Plugin<OpenV1, DescriptionV2>;
using PluginV3 = Plugin<OpenV1, DescriptionV3>;
using PluginV4 = Plugin<OpenV4, DescriptionV4>;
using PluginV5 = Plugin<OpenV5, DescriptionV5>;
using PluginV6 = Plugin<OpenV5, DescriptionV5>;
// Room for version 7's optional device functions, which this plug-in lacks.
struct PluginV7 : PluginV6 {
  void* further[4];
};

}  // namespace ivy::nccl_profiler
