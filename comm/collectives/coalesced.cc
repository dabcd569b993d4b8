// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/coalesced.h"

#include <algorithm>
#include <bit>

#include "comm/transports/shm/registered_memory.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kScratchLeast = 64u << 10;

}  // namespace

PartSizes part_sizes(bool spans_hosts, bool has_processor_each) {
  if (spans_hosts) return {1u << 20, 2u << 20};
  return {has_processor_each ? 32u << 10 : 128u << 10, 512u << 10};
}

bool is_packed(std::size_t count, std::size_t element, const PartSizes& sizes) {
  return count > 0 && count * element < sizes.max_coalesced_bytes;
}

std::vector<PartStep> plan_parts(std::span<const std::size_t> counts, std::size_t element,
                                 const PartSizes& sizes) {
  std::vector<PartStep> steps;
  PartStep packed;
  std::size_t packed_parts = 0;
  const auto end_packed = [&] {
    // Packing a single part would save nothing.
    packed.is_packed = packed_parts > 1;
    if (packed_parts > 0) steps.push_back(packed);
    packed_parts = 0;
  };
  for (std::size_t part = 0; part < counts.size(); ++part) {
    const std::size_t count = counts[part];
    if (count == 0) continue;
    if (!is_packed(count, element, sizes)) {
      steps.push_back({part, part + 1, count, false});
      continue;
    }
    if (packed_parts > 0 && (packed.count + count) * element > sizes.max_packed_bytes) end_packed();
    if (packed_parts++ == 0) packed = {part, part, 0, false};
    packed.end = part + 1;
    packed.count += count;
  }
  end_packed();
  if (steps.empty()) steps.emplace_back();
  return steps;
}

PartsScratch::~PartsScratch() { give_back(); }

void PartsScratch::give_back() {
  if (registered_ != nullptr) registered_memory::release(registered_);
  registered_ = nullptr;
  ordinary_.reset();
  bytes_ = 0;
}

char* PartsScratch::memory(std::size_t bytes) {
  if (bytes > bytes_) {
    give_back();
    const std::size_t wanted = std::bit_ceil(std::max(bytes, kScratchLeast));
    Result<void*> made = registered_memory::allocate(wanted, this);
    if (made.ok()) {
      registered_ = *made;
    } else {
      ordinary_.reset(new char[wanted]);
    }
    bytes_ = wanted;
  }
  return registered_ != nullptr ? static_cast<char*>(registered_) : ordinary_.get();
}

}  // namespace ivy::comm
