// SPDX-License-Identifier: Apache-2.0
// Several all_reduces as one operation, step by step: a long part goes by itself, out of the
// caller's memory into the caller's memory; short ones are packed together, because the ranks meet
// in each step. Packing costs a copy there and one back.
//
// plan_parts() is pure: what it is given is the same on all ranks, and so are the steps.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace ivy::comm {

// The size from which a part goes by itself, and the most that is packed at once. In bytes; a part
// that is packed always fits.
struct PartSizes {
  std::size_t alone_from = 0;
  std::size_t packed_most = 0;
};
// Meeting once takes as long as moving a few KiB if all ranks share memory and run at once, longer
// if they share processors, and longest if there is a network between them.
PartSizes part_sizes(bool spans_hosts, bool has_processor_each);

struct PartStep {
  std::size_t first = 0;
  std::size_t end = 0;  // Behind its last part. Of a packed step, parts that go alone lie between.
  std::size_t count = 0;  // Elements, of all its parts.
  bool is_packed = false;

  bool operator==(const PartStep&) const = default;
};

// `counts` are elements of `element` bytes. At least one step, of no elements where there are none:
// the ranks meet once in every operation.
std::vector<PartStep> plan_parts(std::span<const std::size_t> counts, std::size_t element,
                                 const PartSizes& sizes);
// True if a packed step packs a part of that size.
bool is_packed(std::size_t count, std::size_t element, const PartSizes& sizes);

// Memory to pack into, kept from one operation to the next. Registered, where it can be: then the
// ranks of a host reduce it where it is. Thread: one at a time.
class PartsScratch {
 public:
  PartsScratch() = default;
  ~PartsScratch();
  PartsScratch(const PartsScratch&) = delete;
  PartsScratch& operator=(const PartsScratch&) = delete;

  // Returns at least so many bytes, of any content; valid until the next call. Throws
  // std::bad_alloc.
  char* memory(std::size_t bytes);

 private:
  void give_back();

  void* registered_ = nullptr;
  std::unique_ptr<char[]> ordinary_;  // Used if the memory could not be registered.
  std::size_t bytes_ = 0;
};

}  // namespace ivy::comm
