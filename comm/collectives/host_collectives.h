// SPDX-License-Identifier: Apache-2.0
// The collectives of a communicator on host memory. The hosts of its ranks determine how they are
// performed:
//   one rank           copies
//   one host           shared memory (shared_collectives.h)
//   several hosts      shared memory inside each host, TCP between them
//
// Hosts are counted in the order of their first ranks. A *column* is the ranks with the same index
// on their hosts. Every rank of a host sends its own share of the data between hosts, so that all
// connections work at the same time and no byte crosses the network twice to the same host.
//
// clang-format off
//   all_reduce      reduce-scatter inside the host, exchange and reduce the slices within each
//                   column, all-gather within the column, all-gather inside the host; short vectors
//                   (of two ranks also longer ones) are sent whole to every host
//   all_gather      sends every block once to every other host, to the member of the sender's
//                   column; then all-gather inside the host
//   reduce_scatter  each host reduces every block for itself; its results go to the block's owner
//   broadcast       binomial tree over one member of each host, in pieces; then inside the host
//   the others      directly between the ranks concerned
// clang-format on
//
// Order of reduction: the ranks of a host in rank order, then the hosts in order. Results between
// the two levels are partials (comm/reduce/reduce.h), so that only the last step rounds. If every
// host has one rank, this is the order of ranks, as on one host.
//
// All operations return false if broken; the mesh or the group has the reason. Thread: one at a
// time (the communicator's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/collectives/coalesced.h"
#include "comm/collectives/collective.h"
#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/transports/tcp/tcp_mesh.h"

namespace ivy::comm {

// The ranks of each host.
struct HostMap {
  std::vector<std::vector<std::int32_t>> hosts;  // Ranks by host, in rank order.
  std::vector<std::uint32_t> host_of;            // Index of each rank's host.
  std::vector<std::uint32_t> member_of;          // Each rank's index on its host.
  std::int32_t self = 0;

  std::uint32_t own_host() const { return host_of[static_cast<std::size_t>(self)]; }
  const std::vector<std::int32_t>& own_ranks() const { return hosts[own_host()]; }
  std::uint32_t own_member() const { return member_of[static_cast<std::size_t>(self)]; }
  std::uint32_t host_count() const { return static_cast<std::uint32_t>(hosts.size()); }
  std::uint32_t rank_count() const { return static_cast<std::uint32_t>(host_of.size()); }
};
HostMap make_host_map(const std::vector<std::uint32_t>& host_of_rank, std::int32_t self);

class HostCollectives {
 public:
  // `local` is null if this rank is alone on its host, `mesh` if all ranks are on one host. Both
  // must outlive this.
  HostCollectives(HostMap map, SharedGroup* local, TcpMesh* mesh, bool has_processor_each)
      : map_(std::move(map)),
        local_(local),
        mesh_(mesh),
        has_processor_each_(has_processor_each),
        max_whole_bytes_(
            max_whole_bytes(map_.host_count(), map_.rank_count() == map_.host_count())) {}

  // Performs a collective, by the function that its row in proto/wire/operations.def names.
  bool run(const OperationCall& call, const Collective& collective);
  // Waits until every rank of the communicator has reached this operation.
  bool barrier(const OperationCall& call);

  bool spans_hosts() const { return mesh_ != nullptr; }
  SharedGroup* local() const { return local_; }

 private:
  class Column;
  class ReduceScatter;
  // The functions that run() calls.
  bool barrier(const OperationCall& call, const Collective&) { return barrier(call); }
  bool all_reduce(const OperationCall& call, const Collective& collective);
  bool reduce(const OperationCall& call, const Collective& collective);
  bool broadcast(const OperationCall& call, const Collective& collective);
  bool all_gather(const OperationCall& call, const Collective& collective);
  bool reduce_scatter(const OperationCall& call, const Collective& collective);
  bool gather(const OperationCall& call, const Collective& collective);
  bool scatter(const OperationCall& call, const Collective& collective);
  bool all_to_all(const OperationCall& call, const Collective& collective);
  bool scan(const OperationCall& call, const Collective& collective);

  std::uint32_t members() const { return static_cast<std::uint32_t>(map_.own_ranks().size()); }
  std::int32_t rank_at(std::uint32_t host, std::uint32_t member) const {
    return map_.hosts[host][member];
  }
  // Returns a rank's index on its host.
  std::uint32_t member_of(std::int32_t rank) const {
    return map_.member_of[static_cast<std::size_t>(rank)];
  }
  ReduceRule rule_of(const Collective& collective) const;
  // The form in which the elements of a reduction are sent between hosts.
  struct Wire {
    Form form;  // Elements or partials.
    std::size_t element;
    bool is_raw() const { return form == Form::kElement; }
  };
  Wire wire_of(const ReduceRule& rule) const;
  // Returns the number of elements of a piece, at least 1.
  static std::size_t elements_in(std::size_t piece_bytes, const ReduceRule& rule);
  bool exchange(const OperationCall& call, const std::vector<Outgoing>& outgoing,
                const std::vector<Incoming>& incoming) {
    return mesh_->exchange(call, outgoing, incoming, local_);
  }
  template <class Message, class Memory>
  std::vector<Block> between_hosts(std::vector<Message>& messages, Memory* data,
                                   const Blocks& blocks) const;
  bool all_to_all_inside(const OperationCall& call, const Side<const void>& from,
                         const Side<void>& to);
  bool all_reduce_parts(const OperationCall& call, const Collective& collective);
  bool all_reduce_vector(const OperationCall& call, const Vectors& vectors);
  bool all_reduce_whole(const OperationCall& call, const Vectors& vectors);
  bool all_reduce_sliced(const OperationCall& call, const Vectors& vectors);
  bool exchange_whole(const OperationCall& call, const Vectors& vectors, const void* wire_input);
  // Returns the rank that represents a host in a reduce: the root for its own host, one rank for
  // every other.
  std::int32_t delegate_of(std::uint32_t host, std::int32_t root) const;
  // A host's result to be sent to the root.
  struct HostResult {
    std::int32_t root;
    const void* data;
    std::uint32_t step;
  };
  bool reduce_to_delegate(const OperationCall& call, const Vectors& vectors, std::int32_t root,
                          std::vector<std::uint8_t>& made);
  bool reduce_to_root(const OperationCall& call, const Vectors& vectors, const HostResult& own);
  bool reduce_scatter_to(const OperationCall& call, const Vectors& vectors, const Ranges& ranges);
  bool reduce_inside(const OperationCall& call, const Vectors& vectors, const Ranges& ranges);

  const HostMap map_;
  SharedGroup* const local_;
  TcpMesh* const mesh_;
  const bool has_processor_each_;
  const std::size_t max_whole_bytes_;  // Of an all_reduce.
  // Scratch memory of large operations, kept because new memory would cause a page fault per page.
  std::vector<std::uint8_t> own_scratch_;
  std::vector<std::uint8_t> peer_scratch_;
  PartsScratch parts_scratch_;
};

}  // namespace ivy::comm
