// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/chunk_queue.h"

#include <algorithm>

#include "proto/contract/status.h"

namespace ivy {

void ChunkQueue::push(std::uint32_t source, ChunkKind kind, std::string_view bytes) {
  if (kind != ChunkKind::kBytes) {
    records_.push_back(Record{source, kind, 0});
    return;
  }
  while (!bytes.empty()) {
    const bool needs_block = blocks_.empty() || blocks_.back().size() == kBlockBytes;
    if (needs_block) blocks_.emplace_back().reserve(kBlockBytes);
    std::string& block = blocks_.back();
    const std::size_t count = std::min(bytes.size(), kBlockBytes - block.size());
    block.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    bytes_ += count;
    // Bytes of the source that wrote last extend its record, unless they start a new block: a
    // record must not span two blocks.
    const bool joins = !needs_block && !records_.empty() && records_.back().source == source &&
                       records_.back().kind == ChunkKind::kBytes;
    if (!joins) records_.push_back(Record{source, kind, 0});
    records_.back().size += static_cast<std::uint32_t>(count);
  }
}

ChunkQueue::Front ChunkQueue::front(std::size_t max_bytes) const {
  IVY_ASSERT(!records_.empty());
  const Record& record = records_.front();
  // A mark has no bytes, and there may be no block.
  if (record.size == 0) return Front{record.source, record.kind, {}};
  const std::size_t size = std::min<std::size_t>(record.size, max_bytes);
  return Front{record.source, record.kind, std::string_view(blocks_.front()).substr(read_, size)};
}

void ChunkQueue::pop(std::size_t bytes) {
  IVY_ASSERT(!records_.empty() && bytes <= records_.front().size);
  records_.front().size -= static_cast<std::uint32_t>(bytes);
  if (records_.front().size == 0) records_.pop_front();
  read_ += bytes;
  bytes_ -= bytes;
  // A block that was read to its end is removed; the last one is kept and filled again.
  if (blocks_.empty() || read_ < blocks_.front().size()) return;
  read_ = 0;
  if (blocks_.size() > 1) {
    blocks_.pop_front();
  } else {
    blocks_.front().clear();
  }
}

}  // namespace ivy
