// SPDX-License-Identifier: Apache-2.0
// Output of workers that waits for a slow console: a queue of chunks. A chunk is a run of bytes of
// one stream of one rank (its source, see console.h), or a mark that the stream ended or was cut.
// The bytes are stored as they arrived, in order and without labels, so they take no more memory
// than the hosts were allowed to send. Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace ivy {

enum class ChunkKind : std::uint8_t {
  kBytes,  // Bytes of the source.
  kEnd,    // The source's stream has ended.
  kCut,    // The following bytes of the source were dropped, so its line ends here.
};

// Invariants, which push() and pop() keep:
//  - bytes_ is the sum of the sizes of all records; only records of kBytes have a size.
//  - A record's bytes lie in one block, so front() can return them as one view. A chunk that does
//    not fit into the rest of a block becomes two records.
//  - The records' bytes fill the blocks in order, without gaps, from read_ in the first block on.
//  - Every block but the last is full.
class ChunkQueue {
 public:
  struct Front {
    std::uint32_t source = 0;  // As given to push().
    ChunkKind kind = ChunkKind::kBytes;
    std::string_view bytes;  // Valid until the next call of pop() or push().
  };
  // Appends a chunk. `bytes` counts for kBytes only.
  void push(std::uint32_t source, ChunkKind kind, std::string_view bytes);
  bool empty() const { return records_.empty(); }
  std::size_t bytes() const { return bytes_; }
  // Returns the oldest chunk, or its first max_bytes bytes. The queue must not be empty.
  Front front(std::size_t max_bytes) const;
  // Removes this many bytes of the oldest chunk, and the chunk itself with its last byte.
  void pop(std::size_t bytes);

 private:
  struct Record {
    std::uint32_t source;
    ChunkKind kind;
    std::uint32_t size;
  };
  // Memory is allocated and freed in blocks of this size, so that a long queue is never copied.
  static constexpr std::size_t kBlockBytes = 128u << 10;
  std::deque<Record> records_;  // Oldest first.
  std::deque<std::string> blocks_;
  std::size_t read_ = 0;  // Bytes of the first block that pop() has removed.
  std::size_t bytes_ = 0;
};

}  // namespace ivy
