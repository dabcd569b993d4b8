// SPDX-License-Identifier: Apache-2.0
// Shared by all collectives over shared memory: how data is divided, where a member's buffers are,
// and whether data passes through the slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/collectives/shared_collectives.h"

namespace ivy::comm::shared_parts {

// Slices start at whole cache lines, so that no two members write to the same line.
inline constexpr std::size_t kSliceBytes = 64;

inline std::size_t divide_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

inline const std::uint8_t* at(const void* base, std::size_t offset) {
  return static_cast<const std::uint8_t*>(base) + offset;
}
inline std::uint8_t* at(void* base, std::size_t offset) {
  return static_cast<std::uint8_t*>(base) + offset;
}

// Locations of a member's buffers, published in the entry if the operation may read them in place.
// Stored after the factor of PREMUL_SUM.
struct PublishedBuffers {
  BufferLocation send;
  BufferLocation receive;
};
inline constexpr std::size_t kBuffersOffset = 8;
static_assert(kBuffersOffset + sizeof(PublishedBuffers) <= kInlineBytes);

inline void publish_buffers(SharedGroup& group, const PublishedBuffers& buffers) {
  std::memcpy(group.entries().own_payload() + kBuffersOffset, &buffers, sizeof buffers);
}
inline PublishedBuffers buffers_of(const SharedGroup& group, std::uint32_t member) {
  PublishedBuffers buffers;
  std::memcpy(&buffers, group.entries().payload(member) + kBuffersOffset, sizeof buffers);
  return buffers;
}

// The algorithm of an operation on data that is too large for the eager area.
enum class DataPath : std::uint8_t {
  kBroken,
  kSlots,   // Copied through the slots of the shared segment.
  kDirect,  // Directly from the members' own memory.
};
// Returns kDirect if the buffers of all members (with_receive: including `receive`) are registered
// and can be mapped. Requires that the entries were published with locations. The result is the
// same on all members.
DataPath reduction_path(SharedGroup& group, bool with_receive);
// Returns kDirect if all members use one buffer to send and to receive, and can read each other's
// through the kernel. Same preconditions.
DataPath in_place_path(SharedGroup& group);
// Returns the algorithm for a copy of `bytes` between any two members: kSlots if a member publishes
// no send address, because it will write to its send buffer. Same preconditions.
DataPath copy_path(SharedGroup& group, Operation operation, std::size_t bytes);
// Predicts, before the other members arrive, whether the copy goes through the kernel. If so, a
// member can copy its own block into its result without waiting for them.
bool is_copied_by_kernel(const SharedGroup& group, Operation operation, std::size_t bytes);
// Returns whether the copy goes through the slots whatever the others publish; `own` is published
// by this member. Then the first chunk is published together with the entry.
bool is_surely_by_slots(const SharedGroup& group, Operation operation, std::size_t bytes,
                        const BufferLocation& own);

// One member's part of a range of elements that is divided among all members.
struct Slice {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// Divides a range of `count` elements of `element` bytes among `members` into equal slices of whole
// lines; the last slices may be shorter or empty.
inline Slice slice_of(std::size_t count, std::size_t element, std::uint32_t members,
                      std::uint32_t member) {
  const std::size_t step = std::max<std::size_t>(1, kSliceBytes / element);
  const std::size_t each = divide_up(divide_up(count, members), step) * step;
  const std::size_t begin = std::min(count, each * member);
  return {begin, std::min(each, count - begin)};
}

// Number of elements of a chunk that fills one slot.
inline std::size_t slot_elements(std::size_t element) { return kSlotBytes / element; }

Reduction reduction_of(const ReduceRule& rule, Stores stores);

// Reduces only this member's input: scales it, and converts it to the output's form. Returns true.
bool reduce_own(const Vectors& vectors);

// Calls visit(member) for all other members, starting after this one, so that not all members read
// the same member first. Returns false as soon as a visit returns false.
template <class Visit>
bool each_other(const SharedGroup& group, Visit visit) {
  return comm::each_other(group.self(), group.size(), visit);
}

// Pointers to all members' inputs, and their factors, in member order.
class Inputs {
 public:
  void set(std::uint32_t member, const void* input) { pointers_[member] = input; }
  void set_factor(std::uint32_t member, double factor) { factors_[member] = factor; }
  const void* const* pointers() const { return pointers_; }
  const double* factors() const { return factors_; }

 private:
  const void* pointers_[kMembersMax];
  double factors_[kMembersMax];
};

}  // namespace ivy::comm::shared_parts
