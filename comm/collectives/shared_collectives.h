// SPDX-License-Identifier: Apache-2.0
// Collectives among the members of one host, through shared memory. The same functions serve a
// communicator on one host and the inner step of one that spans hosts.
//
// The size determines the algorithm, never a measured time (selector.h has the limits):
//   inline   up to kInlineBytes: the data is in the entry's line; one exchange
//   eager    up to kEagerBytes published by a member: one exchange through its eager area
//   chunks   slots are filled, reduced in slices by all members, and copied out
//   direct   members read each other's own memory, if they can (peer_memory.h): buffers that are
//            all registered (all_reduce, reduce_scatter, all_gather, all_to_all, broadcast), or
//            through the kernel (all_gather, all_to_all, all_reduce of two members in place, in a
//            range of sizes)
// Entries contain the locations of their members' buffers, so that all choose the same algorithm.
// No member writes into another member's memory, and none returns before the others have read its
// memory.
// In chunks, all_reduce of two members loads and stores 4n bytes per member (3n - 2n/p loads, 2n
// stores) if the staging buffers stay in the second-level cache. Source: "CICO" in XHC (Open MPI)
// and DeepSpeed's shared memory all_reduce, sliced as a reduce-scatter followed by an all-gather
// (Rabenseifner).
//
// `local` is null if this member is alone on its host. The functions then copy, convert and scale
// its own data.
//
// Counts are numbers of elements; "members" are indices on this host. All functions return false if
// the group is broken. Thread: one at a time per group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/collectives/blocks.h"
#include "comm/collectives/collective.h"
#include "comm/reduce/reduce.h"
#include "comm/transports/liveness/operation_call.h"
#include "comm/transports/shm/shared_group.h"

namespace ivy::comm {

// How the members' elements are combined. The result has output_form; `divisor` counts all ranks of
// the communicator.
struct ReduceRule {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  Form output_form = Form::kElement;
  std::uint32_t divisor = 1;
  double factor = 1;  // PREMUL_SUM: the factor of this member's input.

  std::size_t input_bytes() const { return element_bytes(dtype); }
  std::size_t output_bytes() const {
    return output_form == Form::kPartial ? partial_bytes(dtype, op) : element_bytes(dtype);
  }
};

// The vectors of a reduction on this rank, and the rule that combines them.
struct Vectors {
  const ReduceRule& rule;
  const void* send;
  void* receive;  // May be the same as `send`.
  std::size_t count;

  std::size_t bytes() const { return count * rule.input_bytes(); }
};

// The buffers of an operation with a root, which is a member.
struct RootedBlocks {
  const Side<const void>& send;
  const Side<void>& receive;
  std::uint32_t root;
};

bool shared_barrier(SharedGroup* local, const OperationCall& call);

// The result has the user's form: output_form must be kElement.
bool shared_all_reduce(SharedGroup* local, const OperationCall& call, const Vectors& vectors);

// Only `root` gets the result; `receive` may be null on other members.
bool shared_reduce(SharedGroup* local, const OperationCall& call, const Vectors& vectors,
                   std::uint32_t root);

// Reduces ranges[m] of every member's `send` for member m and stores the result in m's `receive`.
// `receive` may be `send` if no range starts before the first one or is longer than it.
bool shared_reduce_scatter(SharedGroup* local, const OperationCall& call, const Vectors& vectors,
                           const Ranges& ranges);

bool shared_broadcast(SharedGroup* local, const OperationCall& call, const Side<void>& buffer,
                      std::uint32_t root);

// Copies member m's block to receive.blocks[m] on every member. `send` may be its own block there.
bool shared_all_gather(SharedGroup* local, const OperationCall& call, const void* send,
                       const Side<void>& receive);

// As all_gather, but only to the root. The other members use only their own block of `receive`.
bool shared_gather(SharedGroup* local, const OperationCall& call, const RootedBlocks& buffers);

// Copies the root's block m to member m. On the root, `receive` may be its own block in `send`. On
// other members, send.blocks is empty.
bool shared_scatter(SharedGroup* local, const OperationCall& call, const RootedBlocks& buffers);

// Copies block m of `send` to member m. In place if both lists of blocks are equal and all blocks
// of all members have the same size.
bool shared_all_to_all(SharedGroup* local, const OperationCall& call, const Side<const void>& send,
                       const Side<void>& receive);

// Reduces the inputs of the members up to and including this one into `receive`.
bool shared_scan(SharedGroup* local, const OperationCall& call, const Vectors& vectors);

}  // namespace ivy::comm
