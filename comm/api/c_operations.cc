// The collectives of the C interface: what the caller gave, checked and turned into values.
#include <algorithm>
#include <utility>
#include <vector>

#include "comm/api/c_device.h"

using namespace ivy::comm;               // NOLINT: this file is the seam of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

namespace {

std::size_t size_of(int dtype) { return element_bytes(static_cast<Dtype>(dtype)); }

OperationShape shape_for(Operation operation, int dtype, std::size_t count, int root = -1) {
  OperationShape shape;
  shape.operation = operation;
  shape.dtype = static_cast<Dtype>(dtype);
  shape.count = count;
  shape.root = root;
  return shape;
}

Blocks even_blocks(std::int32_t size, std::size_t bytes) {
  return Blocks::even(static_cast<std::size_t>(size), bytes);
}

// An array of counts, one for each rank, and one of displacements where it is given: no sum of them
// may wrap around. `which`: "", "send_" or "recv_". `total` are all elements.
int check_counts(const ivy_comm* comm, const std::string& which, const std::size_t* counts,
                 const std::size_t* displacements, int dtype, std::size_t& total) {
  if (counts == nullptr) return invalid(which + "counts is NULL");
  const std::size_t most = most_elements(dtype);
  const auto is_too_large = [&](const char* array, std::size_t rank, std::size_t value) {
    return invalid(which + array + "[" + std::to_string(rank) + "] is " + std::to_string(value) +
                   ", which is too large");
  };
  total = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(comm->communicator->size()); ++rank) {
    if (counts[rank] > most - total) return is_too_large("counts", rank, counts[rank]);
    total += counts[rank];
    if (displacements != nullptr && displacements[rank] > most - counts[rank]) {
      return is_too_large("displacements", rank, displacements[rank]);
    }
  }
  return IVY_OK;
}

std::vector<Block> uneven_blocks(std::int32_t size, const std::size_t* counts,
                                 const std::size_t* displacements, std::size_t element) {
  std::vector<Block> blocks(static_cast<std::size_t>(size));
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    const std::size_t begin = displacements != nullptr ? displacements[rank] : next;
    blocks[rank] = {begin * element, counts[rank] * element};
    next += counts[rank];
  }
  return blocks;
}

nccl::DeviceOperation reduction(Operation operation, std::vector<nccl::Part> parts, int dtype,
                                int op, int root, const Placed& placed, const ivy_call* call) {
  std::size_t total = 0;
  for (const nccl::Part& part : parts) total += part.count;
  OperationShape shape = shape_for(operation, dtype, total, root);
  shape.op = static_cast<ReduceOp>(op);
  nccl::DeviceOperation made = placed.operation(shape, call);
  made.parts = std::move(parts);
  return made;
}

// A buffer as blocks, or as this rank's bytes.
struct Buffer {
  const void* data;
  std::vector<Block> blocks;
  std::size_t bytes;
};

int on_device(ivy_comm* comm, const ivy_call* call, const Placed& placed,
              const OperationShape& shape, Buffer send, Buffer receive) {
  nccl::DeviceOperation operation = placed.operation(shape, call);
  operation.send = send.data;
  operation.send_blocks = std::move(send.blocks);
  operation.send_bytes = send.bytes;
  operation.receive = const_cast<void*>(receive.data);
  operation.receive_blocks = std::move(receive.blocks);
  operation.receive_bytes = receive.bytes;
  return finish(comm, call, comm->communicator->on_device(std::move(operation), options_of(call)));
}

int scatter_on_device(ivy_comm* comm, const ivy_call* call, const Placed& placed,
                      const OperationShape& shape, const void* send, void* recv,
                      std::vector<std::size_t> counts) {
  nccl::DeviceOperation operation = placed.operation(shape, call);
  operation.send = send;
  operation.receive = recv;
  operation.counts = std::move(counts);
  return finish(comm, call, comm->communicator->on_device(std::move(operation), options_of(call)));
}

int check_parts(std::size_t parts, const void* const* send, void* const* recv,
                const std::size_t* counts, int dtype) {
  if (parts == 0) return IVY_OK;
  if (send == nullptr) return invalid("send is NULL");
  if (recv == nullptr) return invalid("recv is NULL");
  if (counts == nullptr) return invalid("counts is NULL");
  const auto name = [](const char* array, std::size_t part) {
    return array + ("[" + std::to_string(part) + "]");
  };
  const auto has_room = [](const void* buffer, std::size_t count) {
    return buffer != IVY_IN_PLACE && (buffer != nullptr || count == 0);
  };
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t count = counts[part];
    const void* const input = send[part] == IVY_IN_PLACE ? recv[part] : send[part];
    if (count > most_elements(dtype) / parts) {
      return invalid(name("counts", part) + " is " + std::to_string(count) +
                     ", which is too large");
    }
    // Names are made for errors only: there may be thousands of parts.
    if (!has_room(recv[part], count)) {
      return check_buffer(recv[part], count, name("recv", part).c_str());
    }
    if (!has_room(input, count)) return check_buffer(input, count, name("send", part).c_str());
  }
  return IVY_OK;
}

// All parts are in one place; those that are empty and NULL are in none.
int find_parts(const ivy_call* call, const std::vector<const void*>& from,
               const std::vector<void*>& to, Placed& placed) {
  const std::size_t parts = from.size();
  std::size_t first = parts;  // The first part that is not NULL.
  for (std::size_t part = 0; part < parts; ++part) {
    if (from[part] == nullptr && to[part] == nullptr) continue;
    Placed own;
    IVY_CHECKED(find_place(call, {from[part], to[part]}, own));
    if (first == parts) {
      first = part;
      placed = own;
    } else if (own.is_device != placed.is_device || own.device != placed.device) {
      return invalid("the parts of one operation must be in one place: part " +
                     std::to_string(part) + " is not where part " + std::to_string(first) + " is");
    }
  }
  return first < parts || parts == 0 ? IVY_OK : find_place(call, {}, placed);
}

int gather_blocks(ivy_comm* comm, const ivy_call* call, const OperationShape& shape,
                  const void* send, std::size_t bytes, void* recv, Blocks blocks) {
  const bool is_root = comm->communicator->rank() == shape.root;
  Placed placed;
  IVY_CHECKED(find_place(call, {send, is_root ? recv : nullptr}, placed));
  if (placed.is_device) {
    return on_device(comm, call, placed, shape, {send, {}, bytes}, {recv, blocks.list(), 0});
  }
  return finish(comm, call,
                comm->communicator->gather(shape, or_nothing(send), bytes, or_nothing(recv),
                                           std::move(blocks), options_of(call)));
}

int scatter_blocks(ivy_comm* comm, const ivy_call* call, const OperationShape& shape,
                   const void* send, Blocks blocks, void* recv, std::size_t bytes) {
  const bool is_root = comm->communicator->rank() == shape.root;
  Placed placed;
  IVY_CHECKED(find_place(call, {is_root ? send : nullptr, recv}, placed));
  if (placed.is_device) {
    return on_device(comm, call, placed, shape, {send, blocks.list(), 0}, {recv, {}, bytes});
  }
  return finish(comm, call,
                comm->communicator->scatter(shape, or_nothing(send), std::move(blocks),
                                            or_nothing(recv), bytes, options_of(call)));
}

}  // namespace

extern "C" {

int ivy_barrier(ivy_comm* comm, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    return finish(comm, call, comm->communicator->barrier(options_of(call)));
  });
}

int ivy_all_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_count(count, dtype, 1));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return finish(
          comm, call,
          comm->communicator->on_device(
              reduction(Operation::kAllReduce, {{send, recv, count}}, dtype, op, -1, placed, call),
              options_of(call)));
    }
    return finish(comm, call,
                  comm->communicator->all_reduce(or_nothing(send), or_nothing(recv), count,
                                                 static_cast<Dtype>(dtype),
                                                 static_cast<ReduceOp>(op), options_of(call)));
  });
}

int ivy_reduce(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
               int root, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    if (is_root) IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    Placed placed;
    IVY_CHECKED(find_place(call, {send, is_root ? recv : nullptr}, placed));
    if (placed.is_device) {
      return finish(
          comm, call,
          comm->communicator->on_device(
              reduction(Operation::kReduce, {{send, recv, count}}, dtype, op, root, placed, call),
              options_of(call)));
    }
    return finish(comm, call,
                  comm->communicator->reduce(or_nothing(send), or_nothing(recv), count,
                                             static_cast<Dtype>(dtype), static_cast<ReduceOp>(op),
                                             root, options_of(call)));
  });
}

int ivy_broadcast(ivy_comm* comm, void* buffer, size_t count, int dtype, int root,
                  const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(count, dtype, 1));
    IVY_CHECKED(check_buffer(buffer, count, "buffer"));
    Placed placed;
    IVY_CHECKED(find_place(call, {buffer}, placed));
    if (placed.is_device) {
      nccl::DeviceOperation operation =
          placed.operation(shape_for(Operation::kBroadcast, dtype, count, root), call);
      operation.receive = buffer;
      operation.receive_bytes = count * size_of(dtype);
      return finish(comm, call,
                    comm->communicator->on_device(std::move(operation), options_of(call)));
    }
    return finish(comm, call,
                  comm->communicator->broadcast(or_nothing(buffer), count,
                                                static_cast<Dtype>(dtype), root, options_of(call)));
  });
}

int ivy_all_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    const std::size_t bytes = count * size_of(dtype);
    if (send == IVY_IN_PLACE) {
      send = static_cast<char*>(or_nothing(recv)) +
             static_cast<std::size_t>(comm->communicator->rank()) * bytes;
    }
    IVY_CHECKED(check_buffer(send, count, "send"));
    const OperationShape shape = shape_for(Operation::kAllGather, dtype, count);
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return on_device(comm, call, placed, shape, {send, {}, bytes},
                       {recv, even_blocks(size, bytes).list(), 0});
    }
    return finish(comm, call,
                  comm->communicator->all_gather(shape, or_nothing(send), or_nothing(recv),
                                                 even_blocks(size, bytes), options_of(call)));
  });
}

int ivy_all_gather_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                     const size_t* displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    std::size_t total = 0;
    IVY_CHECKED(check_counts(comm, "", counts, displacements, dtype, total));
    const std::int32_t size = comm->communicator->size();
    const auto rank = static_cast<std::size_t>(comm->communicator->rank());
    std::vector<Block> blocks = uneven_blocks(size, counts, displacements, size_of(dtype));
    IVY_CHECKED(check_buffer(recv, total, "recv"));
    if (send == IVY_IN_PLACE) send = static_cast<char*>(or_nothing(recv)) + blocks[rank].offset;
    IVY_CHECKED(check_buffer(send, counts[rank], "send"));
    const std::uint64_t hash = counts_fingerprint({counts, static_cast<std::size_t>(size)});
    const OperationShape shape = shape_for(Operation::kAllGatherV, dtype, hash);
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return on_device(comm, call, placed, shape, {send, {}, 0}, {recv, std::move(blocks), 0});
    }
    return finish(comm, call,
                  comm->communicator->all_gather(shape, or_nothing(send), or_nothing(recv),
                                                 std::move(blocks), options_of(call)));
  });
}

int ivy_reduce_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                       int op, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    const auto size = static_cast<std::size_t>(comm->communicator->size());
    IVY_CHECKED(check_count(count, dtype, size));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    OperationShape shape = shape_for(Operation::kReduceScatter, dtype, count);
    shape.op = static_cast<ReduceOp>(op);
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return scatter_on_device(comm, call, placed, shape, send, recv,
                               std::vector<std::size_t>(size, count));
    }
    return finish(comm, call,
                  comm->communicator->reduce_scatter(shape, or_nothing(send), or_nothing(recv),
                                                     Ranges::even(size, count), options_of(call)));
  });
}

int ivy_reduce_scatter_v(ivy_comm* comm, const void* send, void* recv, const size_t* counts,
                         int dtype, int op, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    std::size_t total = 0;
    IVY_CHECKED(check_counts(comm, "", counts, nullptr, dtype, total));
    const auto size = static_cast<std::size_t>(comm->communicator->size());
    Ranges ranges = consecutive({counts, size});
    const bool is_in_place = send == IVY_IN_PLACE;
    IVY_CHECKED(
        check_buffer(recv, is_in_place ? total : counts[comm->communicator->rank()], "recv"));
    if (is_in_place) send = recv;
    IVY_CHECKED(check_buffer(send, total, "send"));
    OperationShape shape =
        shape_for(Operation::kReduceScatterV, dtype, counts_fingerprint({counts, size}));
    shape.op = static_cast<ReduceOp>(op);
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return scatter_on_device(comm, call, placed, shape, send, recv, {counts, counts + size});
    }
    return finish(comm, call,
                  comm->communicator->reduce_scatter(shape, or_nothing(send), or_nothing(recv),
                                                     std::move(ranges), options_of(call)));
  });
}

int ivy_gather(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
               const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    const bool is_root = comm->communicator->rank() == root;
    const std::size_t bytes = count * size_of(dtype);
    if (is_root) IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can gather in place");
      send = static_cast<char*>(or_nothing(recv)) + static_cast<std::size_t>(root) * bytes;
    }
    IVY_CHECKED(check_buffer(send, count, "send"));
    const OperationShape shape = shape_for(Operation::kGather, dtype, count, root);
    Blocks blocks = is_root ? even_blocks(size, bytes) : Blocks();
    return gather_blocks(comm, call, shape, send, bytes, recv, std::move(blocks));
  });
}

int ivy_gather_v(ivy_comm* comm, const void* send, size_t send_count, void* recv,
                 const size_t* counts, const size_t* displacements, int dtype, int root,
                 const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(send_count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    std::vector<Block> blocks;
    if (is_root) {
      std::size_t total = 0;
      IVY_CHECKED(check_counts(comm, "", counts, displacements, dtype, total));
      IVY_CHECKED(check_buffer(recv, total, "recv"));
      blocks = uneven_blocks(comm->communicator->size(), counts, displacements, size_of(dtype));
    }
    if (send == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can gather in place");
      send = static_cast<char*>(or_nothing(recv)) + blocks[static_cast<std::size_t>(root)].offset;
      send_count = counts[root];
    }
    IVY_CHECKED(check_buffer(send, send_count, "send"));
    const OperationShape shape = shape_for(Operation::kGatherV, dtype, 0, root);
    const std::size_t bytes = send_count * size_of(dtype);
    return gather_blocks(comm, call, shape, send, bytes, recv, std::move(blocks));
  });
}

int ivy_scatter(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int root,
                const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    const bool is_root = comm->communicator->rank() == root;
    const std::size_t bytes = count * size_of(dtype);
    if (is_root) IVY_CHECKED(check_buffer(send, count, "send"));
    if (recv == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can scatter in place");
      recv = static_cast<char*>(const_cast<void*>(or_nothing(send))) +
             static_cast<std::size_t>(root) * bytes;
    }
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    const OperationShape shape = shape_for(Operation::kScatter, dtype, count, root);
    Blocks blocks = is_root ? even_blocks(size, bytes) : Blocks();
    return scatter_blocks(comm, call, shape, send, std::move(blocks), recv, bytes);
  });
}

int ivy_scatter_v(ivy_comm* comm, const void* send, const size_t* counts,
                  const size_t* displacements, void* recv, size_t recv_count, int dtype, int root,
                  const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    IVY_CHECKED(check_root(comm, root));
    IVY_CHECKED(check_count(recv_count, dtype, 1));
    const bool is_root = comm->communicator->rank() == root;
    std::vector<Block> blocks;
    if (is_root) {
      std::size_t total = 0;
      IVY_CHECKED(check_counts(comm, "", counts, displacements, dtype, total));
      IVY_CHECKED(check_buffer(send, total, "send"));
      blocks = uneven_blocks(comm->communicator->size(), counts, displacements, size_of(dtype));
    }
    if (recv == IVY_IN_PLACE) {
      if (!is_root) return invalid("only the root can scatter in place");
      recv = static_cast<char*>(const_cast<void*>(or_nothing(send))) +
             blocks[static_cast<std::size_t>(root)].offset;
      recv_count = counts[root];
    }
    IVY_CHECKED(check_buffer(recv, recv_count, "recv"));
    const OperationShape shape = shape_for(Operation::kScatterV, dtype, 0, root);
    const std::size_t bytes = recv_count * size_of(dtype);
    return scatter_blocks(comm, call, shape, send, std::move(blocks), recv, bytes);
  });
}

int ivy_all_to_all(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype,
                   const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    const std::int32_t size = comm->communicator->size();
    IVY_CHECKED(check_count(count, dtype, static_cast<std::size_t>(size)));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    const Blocks blocks = even_blocks(size, count * size_of(dtype));
    const OperationShape shape = shape_for(Operation::kAllToAll, dtype, count);
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      if (send == recv && count != 0) {
        return invalid("all_to_all of device memory cannot work in place; give another recv");
      }
      return on_device(comm, call, placed, shape, {send, blocks.list(), 0},
                       {recv, blocks.list(), 0});
    }
    return finish(comm, call,
                  comm->communicator->all_to_all(shape, or_nothing(send), blocks, or_nothing(recv),
                                                 blocks, options_of(call)));
  });
}

int ivy_all_to_all_v(ivy_comm* comm, const void* send, const size_t* send_counts,
                     const size_t* send_displacements, void* recv, const size_t* recv_counts,
                     const size_t* recv_displacements, int dtype, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_type(dtype));
    if (send == IVY_IN_PLACE) return invalid("all_to_all_v cannot work in place");
    std::size_t sent = 0;
    IVY_CHECKED(check_counts(comm, "send_", send_counts, send_displacements, dtype, sent));
    std::size_t received = 0;
    IVY_CHECKED(check_counts(comm, "recv_", recv_counts, recv_displacements, dtype, received));
    IVY_CHECKED(check_buffer(send, sent, "send"));
    IVY_CHECKED(check_buffer(recv, received, "recv"));
    const std::int32_t size = comm->communicator->size();
    const OperationShape shape = shape_for(Operation::kAllToAllV, dtype, 0);
    std::vector<Block> from = uneven_blocks(size, send_counts, send_displacements, size_of(dtype));
    std::vector<Block> to = uneven_blocks(size, recv_counts, recv_displacements, size_of(dtype));
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return on_device(comm, call, placed, shape, {send, std::move(from), 0},
                       {recv, std::move(to), 0});
    }
    return finish(
        comm, call,
        comm->communicator->all_to_all(shape, or_nothing(send), std::move(from), or_nothing(recv),
                                       std::move(to), options_of(call)));
  });
}

int ivy_scan(ivy_comm* comm, const void* send, void* recv, size_t count, int dtype, int op,
             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_count(count, dtype, 1));
    IVY_CHECKED(check_buffer(recv, count, "recv"));
    if (send == IVY_IN_PLACE) send = recv;
    IVY_CHECKED(check_buffer(send, count, "send"));
    Placed placed;
    IVY_CHECKED(find_place(call, {send, recv}, placed));
    if (placed.is_device) {
      return finish(comm, call,
                    comm->communicator->on_device(reduction(Operation::kScan, {{send, recv, count}},
                                                            dtype, op, -1, placed, call),
                                                  options_of(call)));
    }
    return finish(comm, call,
                  comm->communicator->scan(or_nothing(send), or_nothing(recv), count,
                                           static_cast<Dtype>(dtype), static_cast<ReduceOp>(op),
                                           options_of(call)));
  });
}

int ivy_all_reduce_coalesced(ivy_comm* comm, size_t parts, const void* const* send,
                             void* const* recv, const size_t* counts, int dtype, int op,
                             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_reduction(dtype, op));
    IVY_CHECKED(check_parts(parts, send, recv, counts, dtype));
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<std::size_t> list;
    for (std::size_t part = 0; part < parts; ++part) {
      from.push_back(send[part] == IVY_IN_PLACE ? recv[part] : send[part]);
      to.push_back(recv[part]);
      list.push_back(counts[part]);
    }
    Placed placed;
    IVY_CHECKED(find_parts(call, from, to, placed));
    if (placed.is_device) {
      std::vector<nccl::Part> all;
      for (std::size_t part = 0; part < parts; ++part) {
        all.push_back({from[part], to[part], list[part]});
      }
      nccl::DeviceOperation operation =
          reduction(Operation::kAllReduce, std::move(all), dtype, op, -1, placed, call);
      operation.shape.has_parts = true;
      operation.shape.count = counts_fingerprint(list);
      return finish(comm, call,
                    comm->communicator->on_device(std::move(operation), options_of(call)));
    }
    return finish(comm, call,
                  comm->communicator->all_reduce_coalesced(
                      std::move(from), std::move(to), std::move(list), static_cast<Dtype>(dtype),
                      static_cast<ReduceOp>(op), options_of(call)));
  });
}

}  // extern "C"
