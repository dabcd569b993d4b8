// SPDX-License-Identifier: Apache-2.0
// The collectives of the C interface: checks arguments and turns them into a Collective.
#include <utility>
#include <vector>

#include "comm/api/c_device.h"

using namespace ivy::comm;               // NOLINT: the C interface of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

namespace {

std::size_t size_of(int dtype) { return element_bytes(static_cast<Dtype>(dtype)); }

// A call's arguments. An operation has only some of them.
struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  int dtype = IVY_U8;
  int op = IVY_SUM;
  int root = -1;

  OperationShape shape(Operation operation, std::uint64_t elements) const {
    OperationShape shape;
    shape.operation = operation;
    shape.dtype = static_cast<Dtype>(dtype);
    shape.op = static_cast<ReduceOp>(op);
    shape.root = root;
    shape.count = elements;
    return shape;
  }
};

// The counts of all ranks and the offsets of their blocks. Without offsets, the blocks follow each
// other without gaps. `which` is the prefix of the arrays' names in the header.
struct Counts {
  const std::size_t* counts = nullptr;
  const std::size_t* displacements = nullptr;
  const char* which = "";
};

int check_call_on(const ivy_comm* comm, const ivy_call* call) {
  IVY_CHECKED(check_comm(comm));
  return check_call(call);
}

// Converts counts to blocks and checks that no sum overflows. `total` is the number of all
// elements.
int take_blocks(const ivy_comm* comm, const Counts& given, int dtype, Blocks& blocks,
                std::size_t& total) {
  if (given.counts == nullptr) return invalid(std::string(given.which) + "counts is NULL");
  const std::size_t most = max_elements(dtype);
  const auto is_too_large = [&](const char* array, std::size_t rank, std::size_t value) {
    return invalid(std::string(given.which) + array + "[" + std::to_string(rank) + "] is " +
                   std::to_string(value) + ", which is too large");
  };
  std::vector<Block> list(static_cast<std::size_t>(comm->communicator->ranks().size()));
  total = 0;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const std::size_t count = given.counts[rank];
    if (count > most - total) return is_too_large("counts", rank, count);
    std::size_t begin = total;
    if (given.displacements != nullptr) {
      begin = given.displacements[rank];
      if (begin > most - count) return is_too_large("displacements", rank, begin);
    }
    list[rank] = {begin * size_of(dtype), count * size_of(dtype)};
    total += count;
  }
  blocks = std::move(list);
  return IVY_OK;
}

std::uint64_t hash_of(const ivy_comm* comm, const std::size_t* counts) {
  return counts_fingerprint({counts, static_cast<std::size_t>(comm->communicator->ranks().size())});
}

// Returns the position of a rank's own block in a buffer of blocks.
char* at_block(const void* buffer, const Block& block) {
  return static_cast<char*>(const_cast<void*>(or_nothing(buffer))) + block.offset;
}

int start_on_device(ivy_comm* comm, const ivy_call* call, const LocatedBuffers& placed,
                    Collective& collective) {
  const bool is_in_place = collective.send.data == collective.receive.data;
  if (collective.shape.operation == Operation::kAllToAll && is_in_place &&
      collective.shape.count != 0) {
    return invalid("all_to_all of device memory cannot work in place; pass a separate recv");
  }
  return finish(comm, call,
                comm->communicator->carry_out_on_device(
                    placed.operation(std::move(collective), call), options_of(call)));
}

// Performs the operation on the host or on the device, wherever its buffers are. `send` and `recv`
// are null if this rank does not use them. Flattened, so that a small operation's path is one piece
// of code.
[[gnu::flatten]] int start(ivy_comm* comm, const ivy_call* call, Collective& collective,
                           const void* send, const void* recv) {
  LocatedBuffers placed;
  IVY_CHECKED(find_memory(call, {send, recv}, placed));
  if (call != nullptr) collective.factor = call->factor;
  if (placed.is_device) return start_on_device(comm, call, placed, collective);
  collective.send.data = or_nothing(collective.send.data);
  collective.receive.data = or_nothing(collective.receive.data);
  return finish(comm, call, comm->communicator->carry_out(std::move(collective), options_of(call)));
}

// Properties of an operation with equal parts: which buffer has a block for each rank, whether only
// the root's result matters, and whether an in-place input is in the rank's own block.
struct Row {
  Operation operation = Operation::kNone;
  bool divides_send = false;
  bool divides_recv = false;
  bool is_recv_the_roots = false;
  bool is_in_place_in_own_block = false;
};

template <Row row>
int start_even(ivy_comm* comm, Arguments given, const ivy_call* call) {
  return guarded([&] {
    constexpr bool kReduces = reduces(row.operation);
    auto& [send, recv, count, dtype, op, root] = given;
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(kReduces ? check_reduction(dtype, op) : check_type(dtype));
    if (row.is_recv_the_roots) IVY_CHECKED(check_root(comm, root));
    const Membership& ranks = comm->communicator->ranks();
    const auto size = static_cast<std::size_t>(ranks.size());
    IVY_CHECKED(check_count(count, dtype, row.divides_send || row.divides_recv ? size : 1));
    const bool has_result = !row.is_recv_the_roots || ranks.rank() == root;
    if (has_result) IVY_CHECKED(check_buffer(recv, count, "recv"));
    const std::size_t bytes = count * size_of(dtype);
    if (send == IVY_IN_PLACE) {
      send = recv;
      if (row.is_in_place_in_own_block) {
        send = at_block(recv, {static_cast<std::size_t>(ranks.rank()) * bytes, bytes});
      }
    }
    IVY_CHECKED(check_buffer(send, count, "send"));
    Collective collective{
        given.shape(row.operation, count),
        {send, row.divides_send ? 0 : bytes, Blocks::even(row.divides_send ? size : 0, bytes)},
        {recv, row.divides_recv ? 0 : bytes, Blocks::even(row.divides_recv ? size : 0, bytes)},
        1,
        {}};
    return start(comm, call, collective, send, has_result ? recv : nullptr);
  });
}

// Arguments of a gather or scatter: the root has a block for each rank, and every rank has its own
// part.
struct Rooted {
  Operation operation = Operation::kGather;
  const void* all = nullptr;
  const void* own = nullptr;
  std::size_t own_count = 0;
  int dtype = IVY_U8;
  int root = 0;
  std::optional<Counts> counts;  // If empty, the parts are equal.

  bool gathers() const {
    return operation == Operation::kGather || operation == Operation::kGatherV;
  }
};

// Locates the root's own part, given as IVY_IN_PLACE, in the root's blocks.
int find_own_block(const Blocks& blocks, bool is_root, Rooted& given) {
  if (given.own != IVY_IN_PLACE) return IVY_OK;
  if (!is_root)
    return invalid(given.gathers() ? "only the root can gather in place"
                                   : "only the root can scatter in place");
  const Block block = blocks[static_cast<std::size_t>(given.root)];
  given.own = at_block(given.all, block);
  given.own_count = block.bytes / size_of(given.dtype);
  return IVY_OK;
}

int start_rooted(ivy_comm* comm, Rooted given, const ivy_call* call) {
  return guarded([&] {
    auto& [operation, all, own, own_count, dtype, root, counts] = given;
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    const Membership& ranks = comm->communicator->ranks();
    const auto size = static_cast<std::size_t>(ranks.size());
    IVY_CHECKED(check_count(own_count, dtype, counts ? 1 : size));
    const bool gathers = given.gathers();
    const bool is_root = ranks.rank() == root;
    Blocks blocks;
    if (is_root) {
      std::size_t total = own_count;
      blocks = Blocks::even(size, own_count * size_of(dtype));
      if (counts) IVY_CHECKED(take_blocks(comm, *counts, dtype, blocks, total));
      IVY_CHECKED(check_buffer(all, total, gathers ? "recv" : "send"));
    }
    IVY_CHECKED(find_own_block(blocks, is_root, given));
    IVY_CHECKED(check_buffer(own, own_count, gathers ? "send" : "recv"));
    const std::size_t bytes = own_count * size_of(dtype);
    Collective collective;
    collective.shape =
        Arguments{.dtype = dtype, .root = root}.shape(operation, counts ? 0 : own_count);
    const void* const all_here = is_root ? all : nullptr;
    if (gathers) {
      collective.send = {own, bytes, {}};
      collective.receive = {const_cast<void*>(all), 0, std::move(blocks)};
      return start(comm, call, collective, own, all_here);
    }
    collective.send = {all, 0, std::move(blocks)};
    collective.receive = {const_cast<void*>(own), bytes, {}};
    return start(comm, call, collective, all_here, own);
  });
}

// Checks the arrays and counts of an all_reduce_coalesced, and collects its parts.
int take_parts(std::size_t count, const Arguments& arrays, const std::size_t* counts,
               std::vector<Part>& parts) {
  if (count == 0) return IVY_OK;
  const auto* const send = static_cast<const void* const*>(arrays.send);
  auto* const recv = static_cast<void* const*>(arrays.recv);
  if (send == nullptr) return invalid("send is NULL");
  if (recv == nullptr) return invalid("recv is NULL");
  if (counts == nullptr) return invalid("counts is NULL");
  const auto name = [](const char* array, std::size_t part) {
    return array + ("[" + std::to_string(part) + "]");
  };
  const auto has_room = [](const void* buffer, std::size_t elements) {
    return buffer != IVY_IN_PLACE && (buffer != nullptr || elements == 0);
  };
  const std::size_t most = max_elements(arrays.dtype) / count;
  for (std::size_t part = 0; part < count; ++part) {
    const void* const input = send[part] == IVY_IN_PLACE ? recv[part] : send[part];
    if (counts[part] > most) {
      return invalid(name("counts", part) + " is " + std::to_string(counts[part]) +
                     ", which is too large");
    }
    // Create names only for errors, because there may be thousands of parts.
    if (!has_room(recv[part], counts[part])) {
      return check_buffer(recv[part], counts[part], name("recv", part).c_str());
    }
    if (!has_room(input, counts[part])) {
      return check_buffer(input, counts[part], name("send", part).c_str());
    }
    parts.push_back({input, recv[part], counts[part]});
  }
  return IVY_OK;
}

// Locates the parts, which must all be on the host or on the same device. Parts that are empty and
// NULL do not count.
int find_parts(const ivy_call* call, const std::vector<Part>& parts, LocatedBuffers& placed) {
  std::size_t first = parts.size();  // The first part that is not NULL.
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].send == nullptr && parts[part].receive == nullptr) continue;
    LocatedBuffers own;
    IVY_CHECKED(find_memory(call, {parts[part].send, parts[part].receive}, own));
    if (first == parts.size()) {
      first = part;
      placed = own;
    } else if (own.is_device != placed.is_device || own.device != placed.device) {
      return invalid("all parts of an operation must be in the same memory: part " +
                     std::to_string(part) + " is not where part " + std::to_string(first) + " is");
    }
  }
  return first < parts.size() || parts.empty() ? IVY_OK : find_memory(call, {}, placed);
}

}  // namespace

extern "C" {

int ivy_barrier(ivy_comm* comm, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    Collective collective;
    collective.shape.operation = Operation::kBarrier;
    return finish(comm, call,
                  comm->communicator->carry_out(std::move(collective), options_of(call)));
  });
}

// Defines ivy_all_reduce(), ivy_scan() and ivy_exscan().
#define IVY_COMBINING(function, number, enumerator, ...)                                    \
  int ivy_##function(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, \
                     int op, const ivy_call* call) {                                        \
    constexpr Row kRow{.operation = Operation::enumerator};                                 \
    return start_even<kRow>(comm, {send, recv, count, dtype, op, -1}, call);                \
  }
#include "proto/wire/operations.def"

int ivy_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
               int root, const ivy_call* call) {
  constexpr Row kRow{.operation = Operation::kReduce, .is_recv_the_roots = true};
  return start_even<kRow>(comm, {send, recv, count, dtype, op, root}, call);
}

int ivy_all_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  constexpr Row kRow{
      .operation = Operation::kAllGather, .divides_recv = true, .is_in_place_in_own_block = true};
  return start_even<kRow>(comm, {send, recv, count, dtype, IVY_SUM, -1}, call);
}

int ivy_reduce_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, const ivy_call* call) {
  constexpr Row kRow{.operation = Operation::kReduceScatter, .divides_send = true};
  return start_even<kRow>(comm, {send, recv, count, dtype, op, -1}, call);
}

int ivy_all_to_all(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  constexpr Row kRow{.operation = Operation::kAllToAll, .divides_send = true, .divides_recv = true};
  return start_even<kRow>(comm, {send, recv, count, dtype, IVY_SUM, -1}, call);
}

int ivy_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
               const ivy_call* call) {
  return start_rooted(comm, {Operation::kGather, recv, send, count, dtype, root, {}}, call);
}

int ivy_gather_v(ivy_comm* comm, const void* send, size_t send_count, void* recv,
                 const size_t* counts, const size_t* displacements, int dtype, int root,
                 const ivy_call* call) {
  return start_rooted(
      comm,
      {Operation::kGatherV, recv, send, send_count, dtype, root, Counts{counts, displacements}},
      call);
}

int ivy_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
                const ivy_call* call) {
  return start_rooted(comm, {Operation::kScatter, send, recv, count, dtype, root, {}}, call);
}

int ivy_scatter_v(ivy_comm* comm, const void* send, const size_t* counts,
                  const size_t* displacements, void* recv, size_t recv_count, int dtype, int root,
                  const ivy_call* call) {
  return start_rooted(
      comm,
      {Operation::kScatterV, send, recv, recv_count, dtype, root, Counts{counts, displacements}},
      call);
}

int ivy_broadcast(ivy_comm* comm, void* buffer, size_t count, int dtype, int root,
                  const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(count, dtype, 1));
    IVY_CHECKED(check_buffer(buffer, count, "buffer"));
    Collective collective;
    collective.shape = Arguments{.dtype = dtype, .root = root}.shape(Operation::kBroadcast, count);
    collective.receive = {buffer, count * size_of(dtype), {}};
    return start(comm, call, collective, nullptr, buffer);
  });
}

int ivy_all_gather_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                     const size_t* displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_type(dtype));
    Collective collective;
    Blocks& blocks = collective.receive.blocks;
    std::size_t total = 0;
    IVY_CHECKED(take_blocks(comm, {counts, displacements}, dtype, blocks, total));
    const Block own = blocks[static_cast<std::size_t>(comm->communicator->ranks().rank())];
    IVY_CHECKED(check_buffer(recv, total, "recv"));
    if (send == IVY_IN_PLACE) send = at_block(recv, own);
    IVY_CHECKED(check_buffer(send, own.bytes / size_of(dtype), "send"));
    collective.shape =
        Arguments{.dtype = dtype}.shape(Operation::kAllGatherV, hash_of(comm, counts));
    collective.send = {send, own.bytes, {}};
    collective.receive.data = recv;
    return start(comm, call, collective, send, recv);
  });
}

int ivy_reduce_scatter_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                         int dtype, int op, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_reduction(dtype, op));
    Collective collective;
    Blocks& blocks = collective.send.blocks;
    std::size_t total = 0;
    IVY_CHECKED(take_blocks(comm, {counts}, dtype, blocks, total));
    const Block own = blocks[static_cast<std::size_t>(comm->communicator->ranks().rank())];
    const bool is_in_place = send == IVY_IN_PLACE;
    IVY_CHECKED(check_buffer(recv, is_in_place ? total : own.bytes / size_of(dtype), "recv"));
    if (is_in_place) send = recv;
    IVY_CHECKED(check_buffer(send, total, "send"));
    collective.shape = Arguments{.dtype = dtype, .op = op}.shape(Operation::kReduceScatterV,
                                                                 hash_of(comm, counts));
    collective.send.data = send;
    collective.receive = {recv, own.bytes, {}};
    return start(comm, call, collective, send, recv);
  });
}

int ivy_all_to_all_v(ivy_comm* comm, const void* send, const size_t* send_counts,
                     const size_t* send_displacements, void* recv, const size_t* recv_counts,
                     const size_t* recv_displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_type(dtype));
    if (send == IVY_IN_PLACE) return invalid("all_to_all_v cannot work in place");
    Collective collective;
    std::size_t sent = 0;
    IVY_CHECKED(take_blocks(comm, {send_counts, send_displacements, "send_"}, dtype,
                            collective.send.blocks, sent));
    std::size_t received = 0;
    IVY_CHECKED(take_blocks(comm, {recv_counts, recv_displacements, "recv_"}, dtype,
                            collective.receive.blocks, received));
    IVY_CHECKED(check_buffer(send, sent, "send"));
    IVY_CHECKED(check_buffer(recv, received, "recv"));
    collective.shape = Arguments{.dtype = dtype}.shape(Operation::kAllToAllV, 0);
    collective.send.data = send;
    collective.receive.data = recv;
    return start(comm, call, collective, send, recv);
  });
}

int ivy_all_reduce_coalesced(ivy_comm* comm, size_t parts, const void* const* send,
                             void* const* recv, const size_t* counts, int dtype, int op,
                             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_call_on(comm, call));
    IVY_CHECKED(check_reduction(dtype, op));
    const Arguments arrays{
        .send = send, .recv = const_cast<void**>(recv), .dtype = dtype, .op = op};
    Collective collective;
    IVY_CHECKED(take_parts(parts, arrays, counts, collective.parts));
    LocatedBuffers placed;
    IVY_CHECKED(find_parts(call, collective.parts, placed));
    collective.shape = arrays.shape(Operation::kAllReduce, counts_fingerprint({counts, parts}));
    collective.shape.has_parts = true;
    if (call != nullptr) collective.factor = call->factor;
    if (placed.is_device) return start_on_device(comm, call, placed, collective);
    return finish(comm, call,
                  comm->communicator->carry_out(std::move(collective), options_of(call)));
  });
}

}  // extern "C"
