// SPDX-License-Identifier: Apache-2.0
// Collectives among the members of one host, through shared memory. The same functions serve a
// communicator on one host and the inner step of one that spans hosts.
//
// Sizes decide the way, never time (selector.h has the table):
//   inline   up to kInlineBytes: the data stand in the entry's line; one exchange;
//   eager    up to kEagerBytes of what a member shows: one exchange through its eager area;
//   chunks   slots are filled, reduced in slices by all members, and copied out;
//   direct   members read each other's own memory, where they can (peer_memory.h): buffers
//            that are all registered (all_reduce, reduce_scatter, all_gather, all_to_all,
//            broadcast), else through the kernel (all_gather, all_to_all, all_reduce of two in
//            place, in a range of sizes).
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
#include "comm/collectives/collective.h"
#include "comm/reduce/reduce.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/shm/shared_group.h"

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

// The vectors of a reduction on this rank, and how their elements become one.
struct Vectors {
  const ReduceRule& rule;
  const void* send;
  void* receive;  // May be the same as `send`.
  std::size_t count;

  std::size_t bytes() const { return count * rule.input_bytes(); }
};

// The buffers of an operation with a root: a member, and between hosts a rank.
struct RootedBlocks {
  const Side<const void>& send;
  const Side<void>& receive;
  std::int32_t root;
};

bool shared_barrier(SharedGroup& group, const OperationCall& call);

// The result is in the user's form: output_form is kElement.
bool shared_all_reduce(SharedGroup& group, const OperationCall& call, const Vectors& vectors);

// Only `root` gets the result; `receive` may be null elsewhere.
bool shared_reduce(SharedGroup& group, const OperationCall& call, const Vectors& vectors,
                   std::uint32_t root);

// ranges[m] of every member's `send` is reduced for member m, to whose `receive` it goes. `receive`
// may be `send` where no range begins before the first one or is longer than it.
bool shared_reduce_scatter(SharedGroup& group, const OperationCall& call, const Vectors& vectors,
                           const Ranges& ranges);

bool shared_broadcast(SharedGroup& group, const OperationCall& call, const Side<void>& buffer,
                      std::uint32_t root);

// Member m's block goes to receive.blocks[m] on every member. `send` may be its place there.
bool shared_all_gather(SharedGroup& group, const OperationCall& call, const void* send,
                       const Side<void>& receive);

// As all_gather, only to the root. The other members use only their own block of `receive`.
bool shared_gather(SharedGroup& group, const OperationCall& call, const RootedBlocks& buffers);

// The root's block m goes to member m; on the root `receive` may be its place there. Elsewhere
// send.blocks is empty.
bool shared_scatter(SharedGroup& group, const OperationCall& call, const RootedBlocks& buffers);

// Block m of `send` goes to member m. In place when both lists of blocks are equal and all blocks
// of all members have one size.
bool shared_all_to_all(SharedGroup& group, const OperationCall& call, const Side<const void>& send,
                       const Side<void>& receive);

// `receive` = the members up to and with this one, reduced.
bool shared_scan(SharedGroup& group, const OperationCall& call, const Vectors& vectors);

}  // namespace ivy::comm
