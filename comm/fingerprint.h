// What an operation is, in two words that ranks compare before they touch each other's data: a
// mismatch is found at once and shown with both sides. Nothing is hashed away except the counts of
// the *_v operations, so that the words can be turned back into text.
//
// Pure; thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/reduce/element.h"

namespace ivy::comm {

// The numbers stand in flight records and on the wire: they never change.
enum class Operation : std::uint8_t {
  kNone = 0,
  kBarrier = 1,
  kAllReduce = 2,
  kReduce = 3,
  kBroadcast = 4,
  kAllGather = 5,
  kAllGatherV = 6,
  kReduceScatter = 7,
  kReduceScatterV = 8,
  kGather = 9,
  kGatherV = 10,
  kScatter = 11,
  kScatterV = 12,
  kAllToAll = 13,
  kAllToAllV = 14,
  kScan = 15,
  kGroup = 16,
  kSplit = 17,
  kSend = 18,
  kRecv = 19,
  kInit = 20,
};
std::string_view operation_name(Operation operation);  // "all_reduce"

struct OperationShape {
  Operation operation = Operation::kNone;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kSum;  // Meaningless for operations that do not reduce.
  std::int32_t root = -1;        // World-independent: the rank in the communicator; -1: none.
  std::uint64_t count = 0;       // Elements of one rank; of *_v: a hash of all counts, or 0.
};

struct Fingerprint {
  std::uint64_t words[2] = {0, 0};
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint_of(const OperationShape& shape);
OperationShape shape_of(const Fingerprint& fingerprint);

// "all_reduce(sum) of 1000 f32", "broadcast of 3 i64 from rank 2", "barrier".
std::string describe(const OperationShape& shape);

// Stands for an array of counts in OperationShape::count (64-bit FNV-1a over the values).
std::uint64_t counts_fingerprint(std::span<const std::size_t> counts);

}  // namespace ivy::comm
