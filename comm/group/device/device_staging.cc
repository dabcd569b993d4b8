// SPDX-License-Identifier: Apache-2.0
#include "comm/group/device/device_staging.h"

#include <algorithm>

#include "comm/nccl/driver.h"

namespace ivy::comm {
namespace {

char* at(const void* buffer, std::size_t offset) {
  return static_cast<char*>(const_cast<void*>(buffer)) + offset;
}

Failure failure_of_copy(const Error& error) {
  return make_failure(FailureKind::kTransport, error.message);
}

}  // namespace

Staging::Staging(const nccl::DeviceOperation& operation, std::int32_t rank)
    : operation_(operation), on_host_(operation.collective) {
  collect(static_cast<std::size_t>(rank));
  send_ = memory_of(inputs_);
  receive_ = memory_of(outputs_);
  on_host_.send.data = send_.data();
  on_host_.receive.data = receive_.data();
  const OperationShape& shape = on_host_.shape;
  if (shape.operation == Operation::kBroadcast && shape.root == rank) {
    on_host_.receive.data = send_.data();
  }
  if (!shape.has_parts) return;
  // The parts are stored back to back in the host's buffers, as one vector.
  on_host_.shape.has_parts = false;
  on_host_.shape.count = 0;
  for (const Part& part : on_host_.parts) on_host_.shape.count += part.count;
  on_host_.parts.clear();
}

std::vector<char> Staging::memory_of(const std::vector<Piece>& pieces) {
  std::size_t end = 1;
  for (const Piece& piece : pieces) end = std::max(end, piece.offset + piece.bytes);
  return std::vector<char>(end);
}

// Collects the pieces that this rank copies to the host and back, block by block, because the gaps
// between blocks belong to the caller.
void Staging::collect(std::size_t rank) {
  const auto& [shape, send, receive, factor, parts] = operation_.collective;
  const bool is_root = shape.root == static_cast<std::int32_t>(rank);
  std::size_t next = 0;
  for (const Part& part : parts) {
    const std::size_t bytes = part.count * element_bytes(shape.dtype);
    inputs_.push_back({at(part.send, 0), next, bytes});
    outputs_.push_back({at(part.receive, 0), next, bytes});
    next += bytes;
  }
  const bool is_broadcast = shape.operation == Operation::kBroadcast;
  if (is_broadcast && is_root) inputs_.push_back({at(receive.data, 0), 0, receive.bytes});
  if (send.bytes > 0) inputs_.push_back({at(send.data, 0), 0, send.bytes});
  for (const Block& block : send.blocks.list()) {
    inputs_.push_back({at(send.data, block.offset), block.offset, block.bytes});
  }
  for (const Block& block : receive.blocks.list()) {
    outputs_.push_back({at(receive.data, block.offset), block.offset, block.bytes});
  }
  const bool is_roots = is_broadcast || shape.operation == Operation::kReduce;
  const bool is_written = !is_roots || is_root != is_broadcast;
  if (is_written && receive.bytes > 0) outputs_.push_back({at(receive.data, 0), 0, receive.bytes});
}

MaybeFailure Staging::copy_out(nccl::DeviceCommunicator& device, Deadline& deadline) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  for (const Piece& piece : inputs_) {
    const Result<void> copied = driver->copy_to_host(send_.data() + piece.offset, piece.device,
                                                     piece.bytes, operation_.stream);
    if (!copied.ok()) return failure_of_copy(copied.error());
  }
  return device.await_stream(operation_.stream, operation_.device, deadline);
}

MaybeFailure Staging::copy_back(nccl::DeviceCommunicator& device, Deadline& deadline) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  for (const Piece& piece : outputs_) {
    const Result<void> copied = driver->copy_to_device(piece.device, receive_.data() + piece.offset,
                                                       piece.bytes, operation_.stream);
    if (!copied.ok()) return failure_of_copy(copied.error());
  }
  return device.await_stream(operation_.stream, operation_.device, deadline);
}

}  // namespace ivy::comm
