// Collectives among the members of one host, through shared memory. The same functions serve a
// communicator on one host and the inner step of one that spans hosts.
//
// Sizes decide the way, never time (selector.h has the table):
//   inline   up to kInlineBytes: the data stand in the entry's line; one exchange;
//   eager    up to kEagerBytes of what a member shows: one exchange through its eager area;
//   chunks   slots are filled, reduced in slices by all members, and copied out;
//   direct   members read each other's own memory, where they can (peer_memory.h): buffers
//            that are all registered (all_reduce, reduce_scatter, all_gather, all_to_all,
//            broadcast), else through the kernel (all_gather, all_to_all, in a range of sizes).
//            Every entry tells where its buffers are, so that all choose the same way. Nobody
//            writes into another's memory, and nobody returns before the others have read its own.
// all_reduce by chunks moves 4n bytes of loads and stores per member for two members (3n - 2n/p
// loads, 2n stores), while the staging stays in the second-level cache.
// Source: "CICO" in XHC (Open MPI) and DeepSpeed's shared memory all_reduce, sliced as a
// reduce-scatter followed by an all-gather (Rabenseifner).
//
// Counts are elements, "members" are indices on this host. false: the group is broken.
// Thread: one at a time per group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/collectives/blocks.h"
#include "comm/reduce/reduce.h"
#include "comm/transports/operation_call.h"
#include "comm/transports/shared_group.h"

namespace ivy::comm {

// How members' elements become one. The result has output_form; divisor counts all ranks of the
// communicator.
struct ReduceRule {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  Form output_form = Form::kElement;
  std::uint32_t divisor = 1;
  double factor = 1;  // PREMUL_SUM: of this member's input.

  std::size_t input_bytes() const { return element_bytes(dtype); }
  std::size_t output_bytes() const {
    return output_form == Form::kPartial ? partial_bytes(dtype, op) : element_bytes(dtype);
  }
};

bool shared_barrier(SharedGroup& group, const OperationCall& call);

// `receive` may be `send`. output_form is kElement.
bool shared_all_reduce(SharedGroup& group, const OperationCall& call, const ReduceRule& rule,
                       const void* send, void* receive, std::size_t count);

// Only `root` (a member) gets the result; `receive` may be null elsewhere.
bool shared_reduce(SharedGroup& group, const OperationCall& call, const ReduceRule& rule,
                   const void* send, void* receive, std::size_t count, std::uint32_t root);

// ranges[m] of every member's `send` is reduced for member m, to whose `receive` it goes. `receive`
// may be `send` where no range begins before the first one or is longer than it.
bool shared_reduce_scatter(SharedGroup& group, const OperationCall& call, const ReduceRule& rule,
                           const void* send, void* receive, const Ranges& ranges);

bool shared_broadcast(SharedGroup& group, const OperationCall& call, void* buffer,
                      std::size_t bytes, std::uint32_t root);

// Member m's block goes to receive + blocks[m].offset on every member. `send` may be its place
// there.
bool shared_all_gather(SharedGroup& group, const OperationCall& call, const void* send,
                       void* receive, const Blocks& blocks);

// As all_gather, only to `root`. The other members use only their own entry of `blocks`.
bool shared_gather(SharedGroup& group, const OperationCall& call, const void* send,
                   std::size_t send_bytes, void* receive, const Blocks& blocks, std::uint32_t root);

// The root's block m goes to member m; on the root `receive` may be its place there. Elsewhere
// `blocks` is empty.
bool shared_scatter(SharedGroup& group, const OperationCall& call, const void* send,
                    const Blocks& blocks, void* receive, std::size_t receive_bytes,
                    std::uint32_t root);

// Block m of send_blocks goes to member m. In place (`send` == `receive`) when both lists are equal
// and all blocks of all members have one size.
bool shared_all_to_all(SharedGroup& group, const OperationCall& call, const void* send,
                       const Blocks& send_blocks, void* receive, const Blocks& receive_blocks);

// `receive` = the members up to and with this one, reduced. May be `send`.
bool shared_scan(SharedGroup& group, const OperationCall& call, const ReduceRule& rule,
                 const void* send, void* receive, std::size_t count);

}  // namespace ivy::comm
