#include "launcher/screen/chunk_queue.h"

#include <algorithm>
#include <limits>

#include "proto/status.h"

namespace ivy {

void ChunkQueue::push(std::uint32_t lane, ChunkKind kind, std::string_view bytes) {
  IVY_ASSERT(bytes.size() < std::numeric_limits<std::uint32_t>::max());
  if (kind == ChunkKind::kBytes && bytes.empty()) return;
  const auto size = static_cast<std::uint32_t>(bytes.size());
  buffer_.append(bytes);
  const bool joins = kind == ChunkKind::kBytes && !records_.empty() &&
                     records_.back().lane == lane && records_.back().kind == ChunkKind::kBytes &&
                     records_.back().size <= std::numeric_limits<std::uint32_t>::max() - size;
  if (joins) {
    records_.back().size += size;
  } else {
    records_.push_back(Record{lane, kind, size});
  }
}

ChunkQueue::Front ChunkQueue::front(std::size_t max_bytes) const {
  IVY_ASSERT(!records_.empty());
  const Record& record = records_.front();
  const std::size_t size = std::min<std::size_t>(record.size, max_bytes);
  return Front{record.lane, record.kind, std::string_view(buffer_).substr(read_, size)};
}

void ChunkQueue::pop(std::size_t bytes) {
  IVY_ASSERT(!records_.empty() && bytes <= records_.front().size);
  read_ += bytes;
  records_.front().size -= static_cast<std::uint32_t>(bytes);
  if (records_.front().size == 0) records_.pop_front();
  if (read_ == buffer_.size()) {
    buffer_.clear();
    read_ = 0;
    // One flood must not hold its memory for the rest of the job.
    if (records_.empty() && buffer_.capacity() > (1u << 20)) buffer_.shrink_to_fit();
  } else if (read_ >= buffer_.size() / 2) {
    buffer_.erase(0, read_);
    read_ = 0;
  }
}

}  // namespace ivy
