// SPDX-License-Identifier: Apache-2.0
#include "comm/group/core/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/reduce/identity.h"

namespace ivy::comm {
namespace {

const char* byte_at(const void* data, std::size_t offset) {
  return static_cast<const char*>(data) + offset;
}
char* byte_at(void* data, std::size_t offset) { return static_cast<char*>(data) + offset; }

// In a world of one, send and receive buffers may be the same.
bool copy_local(const char* source, char* target, std::size_t bytes) {
  if (source != target && bytes > 0) std::memmove(target, source, bytes);
  return true;
}

// Reduces in a world of one, which still scales, averages and normalises.
bool reduce_alone(const Vectors& vectors) {
  const auto& [rule, send, receive, count] = vectors;
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.divisor = 1;
  reduction.factors = rule.op == ReduceOp::kPremulSum ? &rule.factor : nullptr;
  reduce(reduction, {&send, 1, receive, nullptr, count});
  return true;
}

std::uint32_t root_of(const OperationCall& call) {
  return static_cast<std::uint32_t>(call.shape.root);
}

// Returns the blocks of a reduce_scatter in elements.
Ranges ranges_of(const Collective& collective) {
  const Blocks& blocks = collective.send.blocks;
  if (collective.shape.operation == Operation::kReduceScatter) {
    return Ranges::even(blocks.size(), collective.shape.count);
  }
  const std::size_t element = element_bytes(collective.shape.dtype);
  std::vector<Range> ranges(blocks.size());
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    ranges[rank] = {blocks[rank].offset / element, blocks[rank].bytes / element};
  }
  return ranges;
}

}  // namespace

bool HostCollectives::run(const OperationCall& call, const Collective& collective) {
  switch (collective.shape.operation) {
    case Operation::kAllReduce:
      if (collective.shape.has_parts) return all_reduce_parts(call, collective);
      return all_reduce(call, {rule(collective), collective.send.data, collective.receive.data,
                               collective.shape.count});
    case Operation::kReduce:
      return reduce(call, collective);
    case Operation::kScan:
    case Operation::kExclusiveScan:
      return scan(call, collective);
    case Operation::kReduceScatter:
    case Operation::kReduceScatterV:
      return reduce_scatter(call, collective);
    case Operation::kBroadcast:
      return broadcast(call, collective);
    case Operation::kAllGather:
    case Operation::kAllGatherV:
    case Operation::kSplit:
      return all_gather(call, collective);
    case Operation::kGather:
    case Operation::kGatherV:
      return gather(call, collective);
    case Operation::kScatter:
    case Operation::kScatterV:
      return scatter(call, collective);
    case Operation::kAllToAll:
    case Operation::kAllToAllV:
      return all_to_all(call, collective);
    default:
      return barrier(call);
  }
}

ReduceRule HostCollectives::rule(const Collective& collective) const {
  ReduceRule rule;
  rule.dtype = collective.shape.dtype;
  rule.op = collective.shape.op;
  rule.divisor = static_cast<std::uint32_t>(ranks_.size());
  rule.factor = collective.factor;
  return rule;
}

bool HostCollectives::all_reduce(const OperationCall& call, const Vectors& vectors) {
  if (spanning_ != nullptr) return spanning_->all_reduce(call, vectors);
  if (local_ != nullptr) return shared_all_reduce(*local_, call, vectors);
  return reduce_alone(vectors);
}

// Every step uses the fingerprint of all parts, so that ranks with different parts find the
// mismatch in the first step, whatever their steps are.
bool HostCollectives::all_reduce_parts(const OperationCall& call, const Collective& collective) {
  const std::vector<Part>& parts = collective.parts;
  const ReduceRule how = rule(collective);
  const std::size_t element = how.input_bytes();
  const PartSizes sizes =
      ranks_.size() == 1 ? PartSizes() : part_sizes(spanning_ != nullptr, has_processor_each_);
  std::vector<std::size_t> counts;
  for (const Part& part : parts) counts.push_back(part.count);
  for (const PartStep& step : plan_parts(counts, element, sizes)) {
    if (!step.is_packed) {
      char nothing = 0;
      const Part part = step.count == 0 ? Part{&nothing, &nothing, 0} : parts[step.first];
      if (!all_reduce(call, {how, part.send, part.receive, step.count})) return false;
      continue;
    }
    char* const packed = parts_scratch_.memory(step.count * element);
    const auto each_packed = [&](auto visit) {
      char* next = packed;
      for (std::size_t part = step.first; part < step.end; ++part) {
        if (!is_packed(counts[part], element, sizes)) continue;
        visit(parts[part], next, counts[part] * element);
        next += counts[part] * element;
      }
    };
    each_packed(
        [](const Part& part, char* to, std::size_t bytes) { std::memcpy(to, part.send, bytes); });
    if (!all_reduce(call, {how, packed, packed, step.count})) return false;
    each_packed([](const Part& part, const char* from, std::size_t bytes) {
      std::memcpy(part.receive, from, bytes);
    });
  }
  return true;
}

bool HostCollectives::reduce(const OperationCall& call, const Collective& collective) {
  const ReduceRule how = rule(collective);
  const Vectors vectors = {how, collective.send.data, collective.receive.data,
                           collective.shape.count};
  if (spanning_ != nullptr) return spanning_->reduce(call, vectors, collective.shape.root);
  if (local_ == nullptr) return reduce_alone(vectors);
  return shared_reduce(*local_, call, vectors, root_of(call));
}

bool HostCollectives::scan(const OperationCall& call, const Collective& collective) {
  const bool is_exclusive = collective.shape.operation == Operation::kExclusiveScan;
  const int ranks_in_it = ranks_.rank() + (is_exclusive ? 0 : 1);
  ReduceRule how = rule(collective);
  how.divisor = static_cast<std::uint32_t>(std::max(1, ranks_in_it));
  const Vectors vectors = {how, collective.send.data, collective.receive.data,
                           collective.shape.count};
  if (spanning_ != nullptr) return spanning_->scan(call, vectors);
  if (local_ == nullptr && is_exclusive) {
    fill_with_identity(how.dtype, how.op, vectors.receive, vectors.count);
    return true;
  }
  if (local_ == nullptr) return reduce_alone(vectors);
  return shared_scan(*local_, call, vectors);
}

bool HostCollectives::reduce_scatter(const OperationCall& call, const Collective& collective) {
  const ReduceRule how = rule(collective);
  const Ranges ranges = ranges_of(collective);
  const void* const send = collective.send.data;
  void* const receive = collective.receive.data;
  if (send != receive || ranges.longest() <= ranges[0].count) {
    return reduce_scatter_to(call, {how, send, receive, ranges[0].count}, ranges);
  }
  // The result would overwrite blocks that others have not read yet.
  const std::size_t own = collective.receive.bytes;
  std::vector<char> result(std::max<std::size_t>(1, own));
  return reduce_scatter_to(call, {how, send, result.data(), ranges[0].count}, ranges) &&
         copy_local(byte_at(result.data(), 0), byte_at(receive, 0), own);
}

bool HostCollectives::reduce_scatter_to(const OperationCall& call, const Vectors& vectors,
                                        const Ranges& ranges) {
  if (spanning_ != nullptr) return spanning_->reduce_scatter(call, vectors, ranges);
  if (local_ == nullptr) return reduce_alone(vectors);
  return shared_reduce_scatter(*local_, call, vectors, ranges);
}

bool HostCollectives::broadcast(const OperationCall& call, const Collective& collective) {
  const Side<void>& buffer = collective.receive;
  if (spanning_ != nullptr) return spanning_->broadcast(call, buffer, call.shape.root);
  return local_ == nullptr || shared_broadcast(*local_, call, buffer, root_of(call));
}

bool HostCollectives::all_gather(const OperationCall& call, const Collective& collective) {
  const void* const send = collective.send.data;
  const Side<void>& receive = collective.receive;
  if (spanning_ != nullptr) return spanning_->all_gather(call, send, receive);
  if (local_ != nullptr) return shared_all_gather(*local_, call, send, receive);
  return copy_local(byte_at(send, 0), byte_at(receive.data, receive.blocks[0].offset),
                    receive.blocks[0].bytes);
}

bool HostCollectives::gather(const OperationCall& call, const Collective& collective) {
  const auto& [data, bytes, blocks] = collective.receive;
  const RootedBlocks buffers = {collective.send, collective.receive, call.shape.root};
  if (spanning_ != nullptr) return spanning_->gather(call, buffers);
  if (local_ != nullptr) return shared_gather(*local_, call, buffers);
  return copy_local(byte_at(collective.send.data, 0), byte_at(data, blocks[0].offset),
                    collective.send.bytes);
}

bool HostCollectives::scatter(const OperationCall& call, const Collective& collective) {
  const auto& [data, bytes, blocks] = collective.send;
  const RootedBlocks buffers = {collective.send, collective.receive, call.shape.root};
  if (spanning_ != nullptr) return spanning_->scatter(call, buffers);
  if (local_ != nullptr) return shared_scatter(*local_, call, buffers);
  return copy_local(byte_at(data, blocks[0].offset), byte_at(collective.receive.data, 0),
                    collective.receive.bytes);
}

bool HostCollectives::all_to_all(const OperationCall& call, const Collective& collective) {
  const Side<const void>& send = collective.send;
  const Side<void>& receive = collective.receive;
  if (spanning_ != nullptr) return spanning_->all_to_all(call, send, receive);
  if (local_ != nullptr) return shared_all_to_all(*local_, call, send, receive);
  return copy_local(byte_at(send.data, send.blocks[0].offset),
                    byte_at(receive.data, receive.blocks[0].offset), send.blocks[0].bytes);
}

}  // namespace ivy::comm
