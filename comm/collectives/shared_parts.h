// SPDX-License-Identifier: Apache-2.0
// Used by all shared memory collectives: how a size is divided, and where results are stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/collectives/shared_collectives.h"

namespace ivy::comm::shared_parts {

// Slices begin at whole cache lines, so that no line is written by two members.
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
struct ShownPlaces {
  BufferPlace send;
  BufferPlace receive;
};
inline constexpr std::size_t kPlacesOffset = 8;
static_assert(kPlacesOffset + sizeof(ShownPlaces) <= kInlineBytes);

inline void show_places(SharedGroup& group, const ShownPlaces& places) {
  std::memcpy(group.entries().own_payload() + kPlacesOffset, &places, sizeof places);
}
inline ShownPlaces places_of(const SharedGroup& group, std::uint32_t member) {
  ShownPlaces places;
  std::memcpy(&places, group.entries().payload(member) + kPlacesOffset, sizeof places);
  return places;
}

// How an operation goes about data that are too large to be shown.
enum class Way : std::uint8_t {
  kBroken,
  kSlots,   // Copied through the slots of the shared segment.
  kDirect,  // Out of the members' own memory.
};
// kDirect if the buffers of all members (with_receive: `receive` too) are registered and can be
// mapped. The entries, with places, must be published. The same on all members.
Way way_of_reduction(SharedGroup& group, bool with_receive);
// kDirect if all members show one buffer to send and to receive, and can read each other's through
// the kernel; the same preconditions.
Way way_in_place(SharedGroup& group);
// The way of a copy of `bytes` between any two members; the same preconditions. A member that shows
// no send address is going to write to its send buffer.
Way way_of_copy(SharedGroup& group, Operation operation, std::size_t bytes);
// Predicts, before the other members arrive, whether the kernel will make the copy. If so, a member
// can copy its own block into its result without waiting for them.
bool is_copied_by_kernel(const SharedGroup& group, Operation operation, std::size_t bytes);
// True if the copy will go through the slots whatever the others show; `own` is what this member
// shows. Then the first chunk is published together with the entry.
bool is_surely_by_slots(const SharedGroup& group, Operation operation, std::size_t bytes,
                        const BufferPlace& own);

// One member's part of a range of elements that all members share out.
struct Slice {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The range of `count` elements of `element` bytes cut for `members`: equal, whole lines, the last
// ones shorter or empty.
inline Slice slice_of(std::size_t count, std::size_t element, std::uint32_t members,
                      std::uint32_t member) {
  const std::size_t step = std::max<std::size_t>(1, kSliceBytes / element);
  const std::size_t each = divide_up(divide_up(count, members), step) * step;
  const std::size_t begin = std::min(count, each * member);
  return {begin, std::min(each, count - begin)};
}

// Elements of a chunk that fills one slot.
inline std::size_t slot_elements(std::size_t element) { return kSlotBytes / element; }

Reduction reduction_of(const ReduceRule& rule, Stores stores);

// Calls visit(member) for all but oneself, beginning behind oneself so that not everybody reads
// the same member first. False as soon as a visit returns false.
template <class Visit>
bool each_other(const SharedGroup& group, Visit visit) {
  return comm::each_other(group.self(), group.size(), visit);
}

// Pointers to all members' inputs, in member order, with room for every host.
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
