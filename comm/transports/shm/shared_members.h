// SPDX-License-Identifier: Apache-2.0
// The ranks of one host in one communicator, and how they share its processors. A *member* is such
// a rank, identified by its index here; the list is the same for all of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ivy::comm {

class SharedSelector;

// A member's name in messages: its ranks in the communicator and in the world.
struct MemberName {
  std::int32_t rank = 0;
  std::int32_t world_rank = 0;
  std::int32_t pid = 0;
};

struct SharedGroupOptions {
  std::string communicator;
  std::string host;
  std::vector<MemberName> members;  // In an order that is the same for all of them.
  std::uint32_t self = 0;
  // At least as many processors as ranks on this host, so waits spin.
  bool has_processor_each = true;
  // More than two ranks per processor, so waits sleep until the last one arrives.
  bool is_overloaded = false;
  std::chrono::microseconds spin{1000};
  // Selects the algorithm of collectives among these members, identically on all of them. May be
  // null if there are none.
  std::shared_ptr<const SharedSelector> selector;

  std::uint32_t size() const { return static_cast<std::uint32_t>(members.size()); }
};

// Calls visit(member) for all other members, starting after `self`, so that not all members visit
// the same one first. Returns false as soon as visit(member) returns false.
template <class Visit>
bool each_other(std::uint32_t self, std::uint32_t size, Visit visit) {
  for (std::uint32_t step = 1; step < size; ++step) {
    const std::uint32_t member = self + step;
    if (!visit(member < size ? member : member - size)) return false;
  }
  return true;
}

}  // namespace ivy::comm
