// What an operation is, in two words that ranks compare before they touch each other's data: a
// mismatch is found at once and shown with both sides. Nothing is hashed away except the counts of
// the *_v operations and of several parts, whose sum is kept, so that the words can be turned back
// into text.
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

// Where the buffers of an operation are.
enum class Place : std::uint8_t { kHost = 0, kDevice = 1 };

inline constexpr unsigned kAheadCounted = 64;

struct OperationShape {
  Operation operation = Operation::kNone;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kSum;  // Meaningless for operations that do not reduce.
  std::int32_t root = -1;        // World-independent: the rank in the communicator; -1: none.
  // Elements of one rank; of *_v and of several parts: counts_fingerprint(), or 0.
  std::uint64_t count = 0;
  bool has_parts = false;  // It is several all_reduces as one operation.
  Place place = Place::kHost;
  // Where ranks meet: how many operations on devices this rank has called since it met the others
  // last, modulo kAheadCounted.
  std::uint8_t ahead = 0;

  bool operator==(const OperationShape&) const = default;
};

struct Fingerprint {
  std::uint64_t words[2] = {0, 0};
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint_of(const OperationShape& shape);
OperationShape shape_of(const Fingerprint& fingerprint);
// True if it names an existing type and reduction: a fingerprint from outside need not.
bool is_possible(const Fingerprint& fingerprint);

// The numbers of the status page, which begin with "none".
constexpr comm_status::Dtype page_number(Dtype dtype) {
  return static_cast<comm_status::Dtype>(static_cast<std::uint8_t>(dtype) + 1);
}
constexpr comm_status::Reduction page_number(ReduceOp op) {
  return static_cast<comm_status::Reduction>(static_cast<std::uint8_t>(op) + 1);
}

constexpr bool reduces(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kReduceScatter:
    case Operation::kReduceScatterV:
    case Operation::kScan:
    case Operation::kExclusiveScan:
      return true;
    default:
      return false;
  }
}
bool has_data(Operation operation);
// The elements of the call, as far as the shape tells them: those of all ranks together, or 0, for
// *_v; those of all parts.
std::uint64_t elements_of(const OperationShape& shape);

// "all_reduce(sum) of 1000 f32", "broadcast of 3 i64 from rank 2", "barrier".
std::string describe(const OperationShape& shape);
// The same, and in what else it differs from `other`: where its buffers are, or what came before.
std::string describe_beside(const OperationShape& shape, const OperationShape& other);

// Stands for an array of counts in OperationShape::count: their sum (40 bits, or the most that they
// hold) and 24 bits of FNV-1a over the values.
std::uint64_t counts_fingerprint(std::span<const std::size_t> counts);

}  // namespace ivy::comm
