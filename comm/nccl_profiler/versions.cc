// SPDX-License-Identifier: Apache-2.0
// The symbols that NCCL looks for, one for each version of its interface. They share a template,
// and Recorder does the work.
#include <pthread.h>

#include <tuple>

#include "comm/nccl_profiler/calls.h"
#include "comm/nccl_profiler/own_page.h"
#include "comm/nccl_profiler/profiler_interface.h"
#include "comm/nccl_profiler/recorder.h"

namespace ivy::nccl_profiler {
namespace {

Recorder& recorder() {
  // Never destroyed, because NCCL's threads may outlive main().
  static Recorder& made = *[] {
    auto* const recorder = new Recorder(request_page);
    pthread_atfork(nullptr, nullptr, [] { made.forget_page(); });
    return recorder;
  }();
  return made;
}

NcclResult open(void** context, int* mask, const CommunicatorFacts& facts) {
  if (context == nullptr || mask == nullptr) return kNcclSuccess;
  Handle handle;
  // No failure here may prevent the program from starting.
  try {
    *mask = static_cast<int>(recorder().open(facts, handle));
  } catch (...) {
    *mask = 0;
  }
  *context = handle.pointer();
  return kNcclSuccess;
}

constexpr OpenV1* kOpenV1 = [](void** context, int* mask) { return open(context, mask, {}); };
// After the mask: name, hash, nodes, ranks, rank, log.
constexpr OpenV4* kOpenV4 = [](void** context, int* mask, auto... arguments) {
  const auto [name, hash, nodes, ranks, rank, log] = std::tuple(arguments...);
  return open(context, mask, {hash, name == nullptr ? "" : name, rank, ranks});
};
constexpr OpenV5* kOpenV5 = [](void** context, std::uint64_t hash, int* mask, auto... arguments) {
  const auto [name, nodes, ranks, rank, log] = std::tuple(arguments...);
  return open(context, mask, {hash, name == nullptr ? "" : name, rank, ranks});
};

template <class Operation>
Handle enter(const Handle& context, const Operation& operation, int rank) {
  if constexpr (requires { operation.communicator_hash; }) {
    const char* const name = operation.communicator_name;
    const CommunicatorFacts facts{operation.communicator_hash, name == nullptr ? "" : name, rank,
                                  0};
    return recorder().enter(context, call_of(operation), &facts);
  } else {
    return recorder().enter(context, call_of(operation), nullptr);
  }
}

template <class Described>
Handle started(const Handle& context, const Described& event) {
  switch (std::uint64_t{event.type}) {
    case kCollectiveEvent:
    case kCopyCollectiveEvent:
      return enter(context, event.collective, event.rank);
    case kMessageEvent:
      return enter(context, event.message, event.rank);
    case kKernelEvent:
      return recorder().start_kernel(Handle::of(event.parent));
    case kProxyEvent:
      return recorder().start_proxy(Handle::of(event.parent), event.proxy);
    case kProxyStepEvent:
      return recorder().start_step(Handle::of(event.parent), event.step.step);
    default:
      return {};
  }
}

template <class Described>
NcclResult start(void* context, void** handle, Described* event) {
  if (handle == nullptr) return kNcclSuccess;
  *handle = event == nullptr ? nullptr : started(Handle::of(context), *event).pointer();
  return kNcclSuccess;
}

NcclResult stop(void* handle) {
  recorder().stop(Handle::of(handle));
  return kNcclSuccess;
}

NcclResult record(void* handle, int state, void*) {
  recorder().record(Handle::of(handle), state);
  return kNcclSuccess;
}

NcclResult finish(void* context) {
  recorder().close(Handle::of(context));
  return kNcclSuccess;
}

constexpr const char* kName = "ivyrun";

}  // namespace
}  // namespace ivy::nccl_profiler

#define IVY_EXPORTED extern "C" __attribute__((visibility("default"))) const
using namespace ivy::nccl_profiler;
IVY_EXPORTED PluginV1 ncclProfiler_v1{kName, kOpenV1, start<DescriptionV1>, stop, record, finish};
IVY_EXPORTED PluginV2 ncclProfiler_v2{kName, kOpenV1, start<DescriptionV2>, stop, record, finish};
IVY_EXPORTED PluginV3 ncclProfiler_v3{kName, kOpenV1, start<DescriptionV3>, stop, record, finish};
IVY_EXPORTED PluginV4 ncclProfiler_v4{kName, kOpenV4, start<DescriptionV4>, stop, record, finish};
IVY_EXPORTED PluginV5 ncclProfiler_v5{kName, kOpenV5, start<DescriptionV5>, stop, record, finish};
IVY_EXPORTED PluginV6 ncclProfiler_v6{kName, kOpenV5, start<DescriptionV5>, stop, record, finish};
IVY_EXPORTED PluginV7 ncclProfiler_v7{{kName, kOpenV5, start<DescriptionV5>, stop, record, finish},
                                      {}};
