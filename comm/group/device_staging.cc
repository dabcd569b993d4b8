// Collectives on device memory by way of host memory: copied out, done by the collectives of the
// CPU, copied back, all in the order of the caller's stream. Slow, and right for every type.
#include <algorithm>
#include <cstring>

#include "comm/group/communicator.h"
#include "comm/group/device_side.h"
#include "comm/group/job.h"

namespace ivy::comm {
namespace {

using nccl::DeviceOperation;
using nccl::Part;

// A piece of device memory, and where it stands in the host's buffer.
struct Piece {
  char* device = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct Staging {
  std::vector<Piece> inputs;
  std::vector<Piece> outputs;
  std::vector<char> send;
  std::vector<char> receive;
};

char* place(const void* buffer, std::size_t offset) {
  return static_cast<char*>(const_cast<void*>(buffer)) + offset;
}

// Collects what is copied out and back on this rank, by operation.
class Pieces {
 public:
  Pieces(const DeviceOperation& operation, std::int32_t rank, Staging& staging)
      : operation_(operation), rank_(static_cast<std::size_t>(rank)), staging_(staging) {}

  void collect() {
    switch (operation_.shape.operation) {
      case Operation::kAllReduce:
      case Operation::kReduce:
      case Operation::kScan:
        collect_parts();
        break;
      case Operation::kReduceScatter:
      case Operation::kReduceScatterV:
        collect_counts();
        break;
      case Operation::kBroadcast:
        if (is_root()) input(operation_.receive, 0, operation_.receive_bytes);
        if (!is_root()) output(operation_.receive, 0, operation_.receive_bytes);
        break;
      default:
        collect_blocks();
    }
    staging_.send.resize(std::max<std::size_t>(1, end_of(staging_.inputs)));
    staging_.receive.resize(std::max<std::size_t>(1, end_of(staging_.outputs)));
  }

 private:
  bool is_root() const { return operation_.shape.root == static_cast<std::int32_t>(rank_); }
  void input(const void* device, std::size_t offset, std::size_t bytes) {
    staging_.inputs.push_back({place(device, 0), offset, bytes});
  }
  void output(const void* device, std::size_t offset, std::size_t bytes) {
    staging_.outputs.push_back({place(device, 0), offset, bytes});
  }
  static std::size_t end_of(const std::vector<Piece>& pieces) {
    std::size_t end = 0;
    for (const Piece& piece : pieces) end = std::max(end, piece.offset + piece.bytes);
    return end;
  }

  void collect_parts() {
    const bool is_written = operation_.shape.operation != Operation::kReduce || is_root();
    std::size_t next = 0;
    for (const Part& part : operation_.parts) {
      const std::size_t bytes = part.count * element_bytes(operation_.shape.dtype);
      input(part.send, next, bytes);
      if (is_written) output(part.receive, next, bytes);
      next += bytes;
    }
  }

  void collect_counts() {
    const std::size_t element = element_bytes(operation_.shape.dtype);
    std::size_t total = 0;
    for (const std::size_t count : operation_.counts) total += count;
    input(operation_.send, 0, total * element);
    output(operation_.receive, 0, operation_.counts[rank_] * element);
  }

  // Copies block by block: the gaps between blocks are the caller's.
  void collect_blocks() {
    const Operation operation = operation_.shape.operation;
    for (const Block& block : operation_.send_blocks) {
      input(place(operation_.send, block.offset), block.offset, block.bytes);
    }
    for (const Block& block : operation_.receive_blocks) {
      output(place(operation_.receive, block.offset), block.offset, block.bytes);
    }
    if (operation == Operation::kAllGather || operation == Operation::kAllGatherV) {
      input(operation_.send, 0, operation_.receive_blocks[rank_].bytes);
    }
    if (operation == Operation::kGather || operation == Operation::kGatherV) {
      input(operation_.send, 0, operation_.send_bytes);
    }
    if (operation == Operation::kScatter || operation == Operation::kScatterV) {
      output(operation_.receive, 0, operation_.receive_bytes);
    }
  }

  const DeviceOperation& operation_;
  const std::size_t rank_;
  Staging& staging_;
};

}  // namespace

bool Communicator::carry_out_staged(const OperationCall& call,
                                    const nccl::DeviceOperation& operation) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, operation.device);
  Staging staging;
  Pieces(operation, rank_, staging).collect();
  const auto failed = [&](const Error& error) {
    return fail_on_device(make_failure(FailureKind::kTransport, error.message), call);
  };
  if (!current.result().ok()) return failed(current.result().error());
  for (const Piece& piece : staging.inputs) {
    const Result<void> copied = driver->copy_to_host(staging.send.data() + piece.offset,
                                                     piece.device, piece.bytes, operation.stream);
    if (!copied.ok()) return failed(copied.error());
  }
  nccl::DeviceCommunicator& device = device_communicator();
  if (const std::optional<Failure> failure =
          device.await_stream(operation.stream, operation.device, call.deadline)) {
    return fail_on_device(*failure, call);
  }
  if (!carry_out_on_host(call, operation, staging.send.data(), staging.receive.data())) {
    return false;
  }
  for (const Piece& piece : staging.outputs) {
    const Result<void> copied = driver->copy_to_device(
        piece.device, staging.receive.data() + piece.offset, piece.bytes, operation.stream);
    if (!copied.ok()) return failed(copied.error());
  }
  const std::optional<Failure> failure =
      device.await_stream(operation.stream, operation.device, call.deadline);
  return !failure || fail_on_device(*failure, call);
}

bool Communicator::carry_out_on_host(const OperationCall& call,
                                     const nccl::DeviceOperation& operation, char* send,
                                     char* receive) {
  const OperationShape& shape = operation.shape;
  CallOptions options;
  options.factor = operation.factor;
  ReduceRule how = rule(shape.dtype, shape.op, options);
  std::size_t count = 0;
  for (const Part& part : operation.parts) count += part.count;
  const std::int32_t root = shape.root;
  const auto root_member = static_cast<std::uint32_t>(std::max(0, root));
  switch (shape.operation) {
    case Operation::kAllReduce:
      return all_reduce_to(call, how, send, receive, count);
    case Operation::kReduce:
      if (spanning_ != nullptr) return spanning_->reduce(call, how, send, receive, count, root);
      if (local_ == nullptr) return all_reduce_to(call, how, send, receive, count);
      return shared_reduce(*local_, call, how, send, receive, count, root_member);
    case Operation::kScan:
      how.divisor = static_cast<std::uint32_t>(rank_ + 1);
      if (spanning_ != nullptr) return spanning_->scan(call, how, send, receive, count);
      if (local_ == nullptr) return all_reduce_to(call, how, send, receive, count);
      return shared_scan(*local_, call, how, send, receive, count);
    case Operation::kReduceScatter:
    case Operation::kReduceScatterV:
      return reduce_scatter_to(call, how, send, receive, consecutive(operation.counts));
    default:
      return move_on_host(call, operation, send, receive);
  }
}

// Moves the one block of a world of one.
bool Communicator::move_on_host(const OperationCall& call, const nccl::DeviceOperation& operation,
                                char* send, char* receive) {
  const std::vector<Block>& to = operation.send_blocks;
  const std::vector<Block>& from = operation.receive_blocks;
  const std::int32_t root = operation.shape.root;
  const auto root_member = static_cast<std::uint32_t>(std::max(0, root));
  const auto alone = [&](std::size_t from_offset, std::size_t to_offset, std::size_t bytes) {
    std::memcpy(receive + to_offset, send + from_offset, bytes);
    return true;
  };
  switch (operation.shape.operation) {
    case Operation::kBroadcast: {
      char* const buffer = root == rank_ ? send : receive;
      if (spanning_ != nullptr) {
        return spanning_->broadcast(call, buffer, operation.receive_bytes, root);
      }
      return local_ == nullptr ||
             shared_broadcast(*local_, call, buffer, operation.receive_bytes, root_member);
    }
    case Operation::kAllGather:
    case Operation::kAllGatherV:
      if (spanning_ != nullptr) return spanning_->all_gather(call, send, receive, from);
      if (local_ == nullptr) return alone(0, from[0].offset, from[0].bytes);
      return shared_all_gather(*local_, call, send, receive, from);
    case Operation::kGather:
    case Operation::kGatherV: {
      const std::size_t bytes = operation.send_bytes;
      if (spanning_ != nullptr) return spanning_->gather(call, send, bytes, receive, from, root);
      if (local_ == nullptr) return alone(0, from[0].offset, bytes);
      return shared_gather(*local_, call, send, bytes, receive, from, root_member);
    }
    case Operation::kScatter:
    case Operation::kScatterV: {
      const std::size_t bytes = operation.receive_bytes;
      if (spanning_ != nullptr) return spanning_->scatter(call, send, to, receive, bytes, root);
      if (local_ == nullptr) return alone(to[0].offset, 0, bytes);
      return shared_scatter(*local_, call, send, to, receive, bytes, root_member);
    }
    case Operation::kAllToAll:
    case Operation::kAllToAllV:
      if (spanning_ != nullptr) return spanning_->all_to_all(call, send, to, receive, from);
      if (local_ == nullptr) return alone(to[0].offset, from[0].offset, to[0].bytes);
      return shared_all_to_all(*local_, call, send, to, receive, from);
    default:
      IVY_ASSERT(!"an operation on device memory");
  }
  return false;
}

}  // namespace ivy::comm
