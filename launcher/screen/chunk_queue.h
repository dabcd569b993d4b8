// SPDX-License-Identifier: Apache-2.0
// Workers' bytes that wait because their console takes no more at the moment. They are kept as they
// arrived, in order and without labels, so that they take no more memory than the hosts were
// allowed to send. Pure; thread: any.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace ivy {

enum class ChunkKind : std::uint8_t {
  kBytes,
  kEnd,
  kCut,  // The following bytes of this stream were dropped, so its line ends here.
};

class ChunkQueue {
 public:
  struct Front {
    std::uint32_t lane = 0;
    ChunkKind kind = ChunkKind::kBytes;
    std::string_view bytes;  // Valid until the next call of pop() or push().
  };
  void push(std::uint32_t lane, ChunkKind kind, std::string_view bytes);
  bool empty() const { return records_.empty(); }
  std::size_t bytes() const { return bytes_; }
  // At most max_bytes of the oldest chunk.
  Front front(std::size_t max_bytes) const;
  // Removes this much of the oldest chunk, and the chunk with its last byte.
  void pop(std::size_t bytes);

 private:
  struct Record {
    std::uint32_t lane;
    ChunkKind kind;
    std::uint32_t size;
  };
  // Memory is allocated and freed in blocks of this size, so that a long queue is never copied.
  static constexpr std::size_t kBlockBytes = 128u << 10;
  std::deque<Record> records_;  // The bytes of a record are in one block.
  std::deque<std::string> blocks_;
  std::size_t read_ = 0;  // Bytes of the first block that have been taken.
  std::size_t bytes_ = 0;
};

}  // namespace ivy
