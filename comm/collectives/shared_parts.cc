// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/shared_parts.h"

#include "comm/collectives/selector.h"

namespace ivy::comm::shared_parts {
Reduction reduction_of(const ReduceRule& rule, Stores stores) {
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.output_form = rule.output_form;
  reduction.divisor = rule.divisor;
  reduction.stores = stores;
  return reduction;
}

bool reduce_own(const Vectors& vectors) {
  const auto& [rule, send, receive, count] = vectors;
  Reduction reduction = reduction_of(rule, Stores::kCached);
  if (rule.op == ReduceOp::kPremulSum) reduction.factors = &rule.factor;
  reduce(reduction, {&send, 1, receive, nullptr, count});
  return true;
}

DataPath reduction_path(SharedGroup& group, bool with_receive) {
  if (!group.entries().await_all()) return DataPath::kBroken;
  for (std::uint32_t member = 0; member < group.size(); ++member) {
    const PublishedBuffers buffers = buffers_of(group, member);
    const bool is_registered =
        buffers.send.is_registered() && (!with_receive || buffers.receive.is_registered());
    if (!is_registered) return DataPath::kSlots;
  }
  const std::optional<std::uint64_t> capabilities = group.buffers().capabilities();
  if (!capabilities) return DataPath::kBroken;
  return (*capabilities & PeerMemory::kCanMap) != 0 ? DataPath::kDirect : DataPath::kSlots;
}

DataPath in_place_path(SharedGroup& group) {
  if (!group.entries().await_all()) return DataPath::kBroken;
  for (std::uint32_t member = 0; member < group.size(); ++member) {
    const PublishedBuffers buffers = buffers_of(group, member);
    const std::uint64_t address = buffers.send.address;
    if (address == 0 || address != buffers.receive.address) return DataPath::kSlots;
  }
  const std::optional<std::uint64_t> capabilities = group.buffers().capabilities();
  if (!capabilities) return DataPath::kBroken;
  return (*capabilities & PeerMemory::kCanRead) != 0 ? DataPath::kDirect : DataPath::kSlots;
}

DataPath copy_path(SharedGroup& group, Operation operation, std::size_t bytes) {
  const std::optional<std::uint64_t> capabilities = group.buffers().capabilities();
  if (!capabilities || !group.entries().await_all()) return DataPath::kBroken;
  bool is_registered = (*capabilities & PeerMemory::kCanMap) != 0;
  for (std::uint32_t member = 0; member < group.size(); ++member) {
    const BufferLocation place = buffers_of(group, member).send;
    if (place.address == 0) return DataPath::kSlots;
    is_registered = is_registered && place.is_registered();
  }
  if (is_registered) return DataPath::kDirect;
  return is_copied_by_kernel(group, operation, bytes) ? DataPath::kDirect : DataPath::kSlots;
}

bool is_copied_by_kernel(const SharedGroup& group, Operation operation, std::size_t bytes) {
  return group.selector().algorithm(operation, bytes) == SharedAlgorithm::kKernel &&
         (group.buffers().known_capabilities().value_or(0) & PeerMemory::kCanRead) != 0;
}

bool is_surely_by_slots(const SharedGroup& group, Operation operation, std::size_t bytes,
                        const BufferLocation& own) {
  if (!group.buffers().known_capabilities()) return false;  // All members determine it together.
  if (own.address == 0) return true;
  return !own.is_registered() && !is_copied_by_kernel(group, operation, bytes);
}

}  // namespace ivy::comm::shared_parts
