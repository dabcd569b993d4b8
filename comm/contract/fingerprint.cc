// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/fingerprint.h"

#include <algorithm>

namespace ivy::comm {
namespace {

constexpr unsigned kHashBits = 24;
constexpr std::uint64_t kHashMask = (std::uint64_t{1} << kHashBits) - 1;
constexpr std::uint64_t kSumMax = (std::uint64_t{1} << (64 - kHashBits)) - 1;

bool has_uneven_counts(const OperationShape& shape) {
  return shape.has_parts || has_trait(shape.operation, comm_status::traits::kUneven);
}

std::string root_text(const OperationShape& shape) {
  if (shape.root < 0) return "";
  const bool from_root = has_trait(shape.operation, comm_status::traits::kFromRoot);
  return std::string(from_root ? " from" : " to") + " rank " + std::to_string(shape.root);
}

// Shapes also come from other processes, so any value must be printable.
std::string name_of(Dtype dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  return number < kDtypeCount ? std::string(dtype_name(dtype)) : "type " + std::to_string(number);
}

std::string name_of(ReduceOp op) {
  const auto number = static_cast<std::size_t>(op);
  return number < kReduceOpCount ? std::string(reduce_op_name(op)) : std::to_string(number);
}

}  // namespace

std::uint64_t elements_of(const OperationShape& shape) {
  if (!has_data(shape.operation)) return 0;
  return has_uneven_counts(shape) ? shape.count >> kHashBits : shape.count;
}

Fingerprint fingerprint_of(const OperationShape& shape) {
  Fingerprint fingerprint;
  fingerprint.words[0] =
      static_cast<std::uint64_t>(shape.operation) | static_cast<std::uint64_t>(shape.dtype) << 8 |
      static_cast<std::uint64_t>(shape.op) << 16 | static_cast<std::uint64_t>(shape.memory) << 24 |
      static_cast<std::uint64_t>(shape.ahead % kAheadCounted) << 25 |
      static_cast<std::uint64_t>(shape.has_parts) << 31 |
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(shape.root)) << 32;
  fingerprint.words[1] = shape.count;
  return fingerprint;
}

OperationShape shape_of(const Fingerprint& fingerprint) {
  OperationShape shape;
  shape.operation = static_cast<Operation>(fingerprint.words[0] & 0xff);
  shape.dtype = static_cast<Dtype>(fingerprint.words[0] >> 8 & 0xff);
  shape.op = static_cast<ReduceOp>(fingerprint.words[0] >> 16 & 0xff);
  shape.memory = static_cast<MemoryKind>(fingerprint.words[0] >> 24 & 1);
  shape.ahead = static_cast<std::uint8_t>(fingerprint.words[0] >> 25 & (kAheadCounted - 1));
  shape.has_parts = (fingerprint.words[0] >> 31 & 1) != 0;
  shape.root = static_cast<std::int32_t>(fingerprint.words[0] >> 32);
  shape.count = fingerprint.words[1];
  return shape;
}

bool is_possible(const Fingerprint& fingerprint) {
  const OperationShape shape = shape_of(fingerprint);
  return static_cast<std::uint8_t>(shape.dtype) < kDtypeCount &&
         static_cast<std::uint8_t>(shape.op) < kReduceOpCount;
}

std::string describe(const OperationShape& shape) {
  std::string text(comm_status::name_of(shape.operation));
  if (reduces(shape.operation)) text += "(" + name_of(shape.op) + ")";
  // ivy_mem_window registers device memory.
  if (shape.operation == Operation::kInit && shape.count != 0)
    return text + " with " + std::to_string(shape.count) + " bytes of device memory";
  if (!has_data(shape.operation)) return text;
  if (has_uneven_counts(shape)) {
    text += " of " + name_of(shape.dtype);
    if (shape.count != 0) {
      text += " (counts #" + std::to_string(shape.count & kHashMask) + ", " +
              std::to_string(shape.count >> kHashBits) + " in all)";
    }
  } else {
    text += " of " + std::to_string(shape.count) + " " + name_of(shape.dtype);
  }
  return text + root_text(shape);
}

std::string describe_against(const OperationShape& shape, const OperationShape& other) {
  std::string text = describe(shape);
  if (shape.memory != other.memory) {
    text += shape.memory == MemoryKind::kDevice ? " in device memory" : " in host memory";
  }
  if (shape.ahead != other.ahead) {
    text += " after " + std::to_string(shape.ahead) + " operations on devices";
  }
  return text;
}

std::uint64_t counts_fingerprint(std::span<const std::size_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  std::uint64_t sum = 0;
  for (const std::size_t count : counts) {
    sum = std::min(kSumMax, sum + std::min<std::uint64_t>(kSumMax, count));
    for (unsigned shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (static_cast<std::uint64_t>(count) >> shift & 0xff)) * 0x100000001b3U;
    }
  }
  return sum << kHashBits | ((hash ^ hash >> kHashBits ^ hash >> 2 * kHashBits) & kHashMask);
}

}  // namespace ivy::comm
