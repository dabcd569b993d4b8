// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/calls.h"

#include <array>
#include <string_view>

namespace ivy::nccl_profiler {
namespace {

using comm_status::Dtype;
using comm_status::Operation;

struct FunctionName {
  std::string_view name;
  Operation operation;
};
// In the order of ncclFunc_t, as far as version 1 defines it.
constexpr FunctionName kFunctions[] = {
    {"Broadcast", Operation::kBroadcast}, {"Reduce", Operation::kReduce},
    {"AllGather", Operation::kAllGather}, {"ReduceScatter", Operation::kReduceScatter},
    {"AllReduce", Operation::kAllReduce}, {"SendRecv", Operation::kSendReceive},
    {"Send", Operation::kSend},           {"Recv", Operation::kReceive},
    {"AlltoAll", Operation::kAllToAll},   {"Gather", Operation::kGather},
    {"Scatter", Operation::kScatter}};
constexpr std::size_t kFunctionsOfV1 = 8;

struct TypeName {
  std::string_view name;
  Dtype dtype;
};
// In the order of ncclDataType_t.
constexpr TypeName kTypes[] = {
    {"ncclInt8", Dtype::kI8},           {"ncclUint8", Dtype::kU8},
    {"ncclInt32", Dtype::kI32},         {"ncclUint32", Dtype::kU32},
    {"ncclInt64", Dtype::kI64},         {"ncclUint64", Dtype::kU64},
    {"ncclFloat16", Dtype::kF16},       {"ncclFloat32", Dtype::kF32},
    {"ncclFloat64", Dtype::kF64},       {"ncclBfloat16", Dtype::kBf16},
    {"ncclFloat8e4m3", Dtype::kF8E4m3}, {"ncclFloat8e5m2", Dtype::kF8E5m2}};

Operation operation_of(const char* name) {
  if (name == nullptr) return Operation::kNone;
  for (const FunctionName& function : kFunctions)
    if (function.name == name) return function.operation;
  return Operation::kNone;
}
Operation operation_of(std::uint8_t number) {
  return number < kFunctionsOfV1 ? kFunctions[number].operation : Operation::kNone;
}

Dtype dtype_of(const char* name) {
  if (name == nullptr) return Dtype::kNone;
  for (const TypeName& type : kTypes)
    if (type.name == name) return type.dtype;
  return Dtype::kNone;
}
Dtype dtype_of(std::uint8_t number) {
  return number < std::size(kTypes) ? kTypes[number].dtype : Dtype::kNone;
}

bool has_root(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}

template <class Collective>
Call collective_call(const Collective& collective) {
  const Operation operation = operation_of(collective.function);
  return {operation, dtype_of(collective.datatype), collective.count,
          has_root(operation) ? collective.root : -1, collective.channels};
}

template <class Message>
Call message_call(const Message& message, std::uint32_t channels) {
  return {operation_of(message.function), dtype_of(message.datatype), message.count, message.peer,
          channels};
}

}  // namespace

Call call_of(const CollectiveV1& collective) { return collective_call(collective); }
Call call_of(const CollectiveV2& collective) { return collective_call(collective); }
Call call_of(const CollectiveV3& collective) { return collective_call(collective); }
Call call_of(const CollectiveV4& collective) { return collective_call(collective); }
Call call_of(const MessageV1& message) { return message_call(message, 0); }
Call call_of(const MessageV2& message) { return message_call(message, 0); }
Call call_of(const MessageV4& message) { return message_call(message, message.channels); }

}  // namespace ivy::nccl_profiler
