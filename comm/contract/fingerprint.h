// SPDX-License-Identifier: Apache-2.0
// Encodes an operation in two words that ranks compare before they touch each other's data, so that
// a mismatch is found immediately and can be shown from both sides. The words can be turned back
// into text: only the counts of *_v operations and of operations with several parts are hashed, and
// their sum is kept.
//
// Pure; thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/reduce/element.h"
#include "proto/wire/operation.h"

namespace ivy::comm {

using Operation = comm_status::Operation;

// Location of an operation's buffers.
enum class MemoryKind : std::uint8_t { kHost = 0, kDevice = 1 };

inline constexpr unsigned kAheadCounted = 64;

struct OperationShape {
  Operation operation = Operation::kNone;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kSum;  // Meaningless for operations that do not reduce.
  std::int32_t root = -1;        // Rank in the communicator, not the world; -1 if there is no root.
  // Elements of one rank. For *_v operations and operations with several parts:
  // counts_fingerprint(), or 0.
  std::uint64_t count = 0;
  bool has_parts = false;  // Several all_reduces as one operation.
  MemoryKind memory = MemoryKind::kHost;
  // For operations that synchronize: number of operations on devices that this rank has called
  // since the last one, modulo kAheadCounted.
  std::uint8_t ahead = 0;

  bool operator==(const OperationShape&) const = default;
};

struct Fingerprint {
  std::uint64_t words[2] = {0, 0};
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint_of(const OperationShape& shape);
OperationShape shape_of(const Fingerprint& fingerprint);
// Returns whether the fingerprint names an existing type and reduction. Check this for fingerprints
// from other processes.
bool is_possible(const Fingerprint& fingerprint);

// Number on the status page, where 0 means "none".
constexpr comm_status::Dtype page_number(Dtype dtype) {
  return static_cast<comm_status::Dtype>(static_cast<std::uint8_t>(dtype) + 1);
}
constexpr comm_status::Reduction page_number(ReduceOp op) {
  return static_cast<comm_status::Reduction>(static_cast<std::uint8_t>(op) + 1);
}

constexpr bool reduces(Operation operation) {
  return has_trait(operation, comm_status::traits::kReduces);
}
constexpr bool has_data(Operation operation) {
  return !has_trait(operation, comm_status::traits::kNoData);
}
// Returns the number of elements as far as the shape has it: for *_v operations the sum over all
// ranks, or 0; for operations with several parts the sum over all parts.
std::uint64_t elements_of(const OperationShape& shape);

// Returns a text such as "all_reduce(sum) of 1000 f32", "broadcast of 3 i64 from rank 2",
// "barrier".
std::string describe(const OperationShape& shape);
// Returns the text of describe(). If the shape differs from `other` in the buffers' location or in
// the number of preceding operations, the text also says that.
std::string describe_against(const OperationShape& shape, const OperationShape& other);

// Encodes an array of counts for OperationShape::count: their sum (40 bits, saturated) and 24 bits
// of FNV-1a over the values.
std::uint64_t counts_fingerprint(std::span<const std::size_t> counts);

}  // namespace ivy::comm
