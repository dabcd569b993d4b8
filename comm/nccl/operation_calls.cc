// SPDX-License-Identifier: Apache-2.0
// start_calls() runs Calls::run(), which makes the reduction, then one call of NCCL, or a group of
// several if NCCL has no such operation. own_part() and finish_calls() copy the rank's own block.
#include "comm/nccl/operation_calls.h"

#include <algorithm>

#include "comm/nccl/reduction_plan.h"
#include "proto/contract/status.h"

namespace ivy::comm::nccl {
namespace {

using comm_status::Operation;

const char* at(const void* buffer, std::size_t bytes) {
  return static_cast<const char*>(buffer) + bytes;
}
char* at(void* buffer, std::size_t bytes) { return static_cast<char*>(buffer) + bytes; }

bool are_even(const Blocks& blocks) {
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    if (blocks[rank].bytes != blocks[0].bytes || blocks[rank].offset != rank * blocks[0].bytes) {
      return false;
    }
  }
  return true;
}

// The unit in which NCCL's kernel writes (see alone()).
constexpr std::size_t kWholeBytes = 16;

// The calls of one operation. After the first failure, `result_` is not changed any more.
class Calls {
 public:
  Calls(const Caller& caller, const DeviceOperation& operation)
      : caller_(caller),
        nccl_(caller.nccl),
        collective_(operation.collective),
        transfer_(operation.transfer),
        stream_(operation.stream) {}

  CallResult run(int& premul_sum) {
    if (!make_op(premul_sum)) return result_;
    // A group costs time, and most operations are one call.
    if (is_one_call()) {
      call();
      return result_;
    }
    in_group_ = true;
    check(nccl_.group_start());
    if (result_.status != kSuccess) return result_;
    call();
    const Status ended = nccl_.group_end();
    if (result_.status == kSuccess) result_.status = ended;
    return result_;
  }

 private:
  std::size_t rank() const { return static_cast<std::size_t>(caller_.rank); }
  std::int32_t root() const { return collective_.shape.root; }

  // Inside a group, a non-blocking communicator returns kInProgress for success.
  void check(Status status) {
    if (result_.status == kSuccess && !(in_group_ && status == kInProgress)) {
      result_.status = status;
    }
  }

  bool is_one_call() const {
    const auto& [shape, send, receive, factor, parts] = collective_;
    switch (shape.operation) {
      case Operation::kAllReduce:
        return !shape.has_parts && caller_.size > 1;
      case Operation::kReduce:
        return caller_.size > 1;
      case Operation::kBroadcast:
        return true;
      case Operation::kReduceScatter:
        return caller_.size > 1 && are_even(send.blocks);
      case Operation::kAllGather:
        return are_even(receive.blocks);
      case Operation::kAllToAll:
        return nccl_.all_to_all != nullptr;
      case Operation::kSend:
      case Operation::kReceive:
        return true;
      default:
        return false;
    }
  }

  bool make_op(int& premul_sum) {
    const OperationShape& shape = collective_.shape;
    if (!reduces(shape.operation)) return true;
    plan_ = plan_reduction(shape.operation, shape.dtype, shape.op);
    IVY_ASSERT(!plan_.is_staged);
    // With one rank, the mean equals the sum, which NCCL copies without a kernel (see alone()).
    const bool is_mean_of_one = caller_.size == 1 && plan_.reduce == Reduce::kAvg;
    op_ = static_cast<int>(is_mean_of_one ? Reduce::kSum : plan_.reduce);
    if (!plan_.is_premultiplied) return true;
    auto single = static_cast<float>(collective_.factor);
    double twice = collective_.factor;
    void* const factor = plan_.element == Element::kF32 ? static_cast<void*>(&single) : &twice;
    constexpr int kHostImmediate = 1;
    check(
        nccl_.make_premul_sum(&premul_sum, factor, plan_.element, kHostImmediate, caller_.handle));
    op_ = premul_sum;
    return result_.status == kSuccess;
  }

  void call() {
    const auto& [shape, send, receive, factor, parts] = collective_;
    switch (shape.operation) {
      case Operation::kAllReduce:
        all_reduce_parts();
        break;
      case Operation::kReduce:
        reduce(send.data, receive.data, collective_.shape.count, root());
        break;
      case Operation::kReduceScatter:
      case Operation::kReduceScatterV:
        reduce_scatter();
        break;
      case Operation::kBroadcast:
        broadcast(receive);
        break;
      case Operation::kAllGather:
      case Operation::kAllGatherV:
        all_gather();
        break;
      case Operation::kAllToAll:
        all_to_all();
        break;
      case Operation::kSend:
      case Operation::kReceive:
        transfer();
        break;
      default:
        IVY_ASSERT(!reduces(shape.operation));
        exchange();
    }
  }

  void all_reduce_parts() {
    const auto& [shape, send, receive, factor, parts] = collective_;
    if (!shape.has_parts) return all_reduce_part({send.data, receive.data, shape.count});
    for (const Part& part : parts) {
      // Skips empty parts, whose pointers may be null, because NCCL may check them. The counts are
      // equal on all ranks, so all ranks skip the same parts.
      if (part.count > 0 || parts.size() == 1) all_reduce_part(part);
    }
  }
  void all_reduce_part(const Part& part) {
    if (caller_.size == 1) return alone(part.send, part.receive, part.count);
    all_reduce(part.send, part.receive, part.count);
  }

  // Reduces in a communicator of one rank. There, NCCL's kernel for a factor (in 2.28.9, not in
  // 2.32.3) does not write the elements after the last multiple of 16 bytes of a large buffer. It
  // handles small buffers correctly, so these elements are reduced by a second call.
  void alone(const void* send, void* receive, std::size_t count) {
    const std::size_t element = element_bytes(collective_.shape.dtype);
    const std::size_t rest = plan_.is_premultiplied ? count % (kWholeBytes / element) : 0;
    const std::size_t whole = count - rest;
    if (whole > 0 || rest == 0) all_reduce(send, receive, whole);
    if (rest > 0) all_reduce(at(send, whole * element), at(receive, whole * element), rest);
  }

  void all_reduce(const void* send, void* receive, std::size_t count) {
    check(nccl_.all_reduce(send, receive, count * plan_.multiplicity, plan_.element, op_,
                           caller_.handle, stream_));
  }

  void reduce(const void* send, void* receive, std::size_t count, std::int32_t to) {
    if (caller_.size == 1) return alone(send, receive, count);
    check(nccl_.reduce(send, receive, count * plan_.multiplicity, plan_.element, op_, to,
                       caller_.handle, stream_));
  }

  // In place, NCCL requires the result at the rank's block of the input; finish_calls() moves it to
  // the start of the buffer.
  void reduce_scatter() {
    const auto& [shape, send, receive, factor, parts] = collective_;
    const std::size_t element = element_bytes(shape.dtype);
    const std::size_t count = send.blocks[0].bytes / element;
    const bool is_in_place = send.data == receive.data;
    void* const own = at(receive.data, is_in_place ? send.blocks[rank()].offset : 0);
    if (caller_.size == 1) return alone(send.data, own, count);
    if (are_even(send.blocks)) {
      check(nccl_.reduce_scatter(send.data, own, count * plan_.multiplicity, plan_.element, op_,
                                 caller_.handle, stream_));
      return;
    }
    for (std::size_t r = 0; r < send.blocks.size(); ++r) {
      const Block block = send.blocks[r];
      if (block.bytes == 0) continue;
      reduce(at(send.data, block.offset), own, block.bytes / element, static_cast<std::int32_t>(r));
    }
  }

  void all_gather() {
    const auto& [data, bytes, blocks] = collective_.receive;
    if (are_even(blocks)) {
      check(nccl_.all_gather(collective_.send.data, data, blocks[0].bytes, Element::kU8,
                             caller_.handle, stream_));
      return;
    }
    for (std::size_t r = 0; r < blocks.size(); ++r) {
      if (blocks[r].bytes == 0) continue;
      void* const to = at(data, blocks[r].offset);
      check(nccl_.broadcast(r == rank() ? collective_.send.data : to, to, blocks[r].bytes,
                            Element::kU8, static_cast<int>(r), caller_.handle, stream_));
    }
  }

  void broadcast(const Side<void>& with) {
    check(nccl_.broadcast(with.data, with.data, with.bytes, Element::kU8, root(), caller_.handle,
                          stream_));
  }

  void transfer() {
    const auto& [data, bytes, peer, is_send] = transfer_;
    if (is_send) {
      check(nccl_.send(data, bytes, Element::kU8, peer, caller_.handle, stream_));
    } else {
      check(nccl_.receive(data, bytes, Element::kU8, peer, caller_.handle, stream_));
    }
  }

  void send(const void* from, std::size_t bytes, std::size_t to) {
    if (bytes == 0 || to == rank()) return;  // finish_calls() copies this rank's own part.
    check(nccl_.send(from, bytes, Element::kU8, static_cast<int>(to), caller_.handle, stream_));
  }
  void receive(void* into, std::size_t bytes, std::size_t from) {
    if (bytes == 0 || from == rank()) return;
    check(
        nccl_.receive(into, bytes, Element::kU8, static_cast<int>(from), caller_.handle, stream_));
  }

  void all_to_all() {
    const auto& [shape, sent, received, factor, parts] = collective_;
    if (nccl_.all_to_all == nullptr) return exchange();
    check(nccl_.all_to_all(sent.data, received.data, sent.blocks[0].bytes, Element::kU8,
                           caller_.handle, stream_));
  }

  // Moves each block as a message: gather, scatter, and any other collective that NCCL does not
  // have. A buffer without blocks is sent to the root, or received from it. NCCL 2.28 has gather
  // and scatter, but only the root knows how many bytes the others send, and for an even gather
  // NCCL's own function sends the same messages.
  void exchange() {
    const auto& [shape, sent, received, factor, parts] = collective_;
    send(sent.data, sent.bytes, static_cast<std::size_t>(root()));
    receive(received.data, received.bytes, static_cast<std::size_t>(root()));
    for (std::size_t r = 0; r < sent.blocks.size(); ++r) {
      send(at(sent.data, sent.blocks[r].offset), sent.blocks[r].bytes, r);
    }
    for (std::size_t r = 0; r < received.blocks.size(); ++r) {
      receive(at(received.data, received.blocks[r].offset), received.blocks[r].bytes, r);
    }
  }

  const Caller& caller_;
  const Functions& nccl_;
  const Collective& collective_;
  const Transfer& transfer_;
  const Stream stream_;
  ReductionPlan plan_;
  int op_ = 0;
  bool in_group_ = false;
  CallResult result_;
};

// This rank's own block of an exchange(), or the result of a reduce_scatter in place. It is copied
// without NCCL.
struct OwnPart {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
};

OwnPart own_part(const Caller& caller, const Collective& collective) {
  const auto rank = static_cast<std::size_t>(caller.rank);
  const OperationShape& shape = collective.shape;
  const Side<const void>& send = collective.send;
  const Side<void>& receive = collective.receive;
  const auto sent = [&] { return at(send.data, send.blocks[rank].offset); };
  const auto received = [&] { return at(receive.data, receive.blocks[rank].offset); };
  switch (shape.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kBroadcast:
    case Operation::kAllGather:
    case Operation::kAllGatherV:
    case Operation::kSend:
    case Operation::kReceive:
      return {};
    case Operation::kReduceScatter:
    case Operation::kReduceScatterV:
      if (send.data != receive.data) return {};
      return {sent(), receive.data, send.blocks[rank].bytes};
    case Operation::kAllToAll:
      if (caller.nccl.all_to_all != nullptr) return {};
      [[fallthrough]];
    default:
      if (shape.root >= 0 && shape.root != caller.rank) return {};
      if (send.blocks.size() == 0) return {send.data, received(), send.bytes};
      if (receive.blocks.size() == 0) return {sent(), receive.data, receive.bytes};
      return {sent(), received(), send.blocks[rank].bytes};
  }
}

}  // namespace

[[gnu::flatten]] CallResult start_calls(const Caller& caller, const DeviceOperation& operation,
                                        int& premul_sum) {
  return Calls(caller, operation).run(premul_sum);
}

CallResult finish_calls(const Caller& caller, const DeviceOperation& operation) {
  CallResult result;
  const OwnPart own = own_part(caller, operation.collective);
  if (own.bytes == 0 || own.from == own.to) return result;
  const auto* const from = static_cast<const char*>(own.from);
  auto* const to = static_cast<char*>(own.to);
  // Only a reduce_scatter in place can overlap. It moves data towards the start of the buffer, so
  // it is copied from there in pieces that do not overlap.
  const bool overlaps = to < from && from < to + own.bytes;
  const std::size_t piece = overlaps ? static_cast<std::size_t>(from - to) : own.bytes;
  for (std::size_t done = 0; done < own.bytes; done += piece) {
    const Result<void> copied = caller.driver.copy_on_device(
        to + done, from + done, std::min(piece, own.bytes - done), operation.stream);
    if (!copied.ok()) result.error = copied.error().message;
  }
  return result;
}

}  // namespace ivy::comm::nccl
