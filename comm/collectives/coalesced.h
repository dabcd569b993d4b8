// SPDX-License-Identifier: Apache-2.0
// Splits several all_reduces, called as one operation, into steps. A long part has its own step and
// is reduced from the caller's memory into the caller's memory. Short parts are packed together,
// because the ranks synchronize in each step; packing costs one copy each way.
//
// plan_parts() is pure. Its input is the same on all ranks, so the steps are the same, too.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace ivy::comm {

// The size from which a part has its own step, and the limit of one packed step, in bytes. A part
// that is packed always fits.
struct PartSizes {
  std::size_t max_coalesced_bytes = 0;
  std::size_t max_packed_bytes = 0;
};
// Returns the sizes. Synchronizing takes as long as moving a few KiB if all ranks share memory and
// run at the same time, longer if they share processors, and longest across a network.
PartSizes part_sizes(bool spans_hosts, bool has_processor_each);

struct PartStep {
  std::size_t first = 0;
  // One past its last part. Long parts, which have their own steps, may lie between packed parts.
  std::size_t end = 0;
  std::size_t count = 0;  // Elements of all its parts.
  bool is_packed = false;

  bool operator==(const PartStep&) const = default;
};

// `counts` are numbers of elements of `element` bytes. Returns at least one step, which is empty if
// there are no elements, because the ranks synchronize once in every operation.
std::vector<PartStep> plan_parts(std::span<const std::size_t> counts, std::size_t element,
                                 const PartSizes& sizes);
bool is_packed(std::size_t count, std::size_t element, const PartSizes& sizes);

// Memory for packing, kept between operations. Registered if possible; the ranks of a host then
// reduce it in place. Thread: one at a time.
class PartsScratch {
 public:
  PartsScratch() = default;
  ~PartsScratch();
  PartsScratch(const PartsScratch&) = delete;
  PartsScratch& operator=(const PartsScratch&) = delete;

  // Returns at least this many bytes, with undefined contents, valid until the next call. Throws
  // std::bad_alloc.
  char* memory(std::size_t bytes);

 private:
  void give_back();

  void* registered_ = nullptr;
  std::unique_ptr<char[]> ordinary_;  // Used if the memory could not be registered.
  std::size_t bytes_ = 0;
};

}  // namespace ivy::comm
