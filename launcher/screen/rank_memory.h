// SPDX-License-Identifier: Apache-2.0
// Remembers the last output of a rank that --show-ranks failed hides, both streams in their order.
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace ivy {

class RankMemory {
 public:
  struct Piece {
    int stream = 1;
    std::string bytes;
  };
  // Limit of the bytes that are kept; older ones are dropped.
  static constexpr std::size_t kMaxBytes = 64u << 10;

  // end: the stream has ended.
  void add(int stream, std::string_view bytes, bool end) {
    if (end) ended_[stream == 2 ? 1 : 0] = true;
    if (bytes.size() > kMaxBytes) {
      bytes.remove_prefix(bytes.size() - kMaxBytes);
      is_cut_ = true;
    }
    while (!bytes.empty()) bytes.remove_prefix(add_some(stream, bytes));
    while (size_ > kMaxBytes) {
      size_ -= pieces_.front().bytes.size();
      pieces_.pop_front();
      is_cut_ = true;
    }
  }
  // Returns the kept bytes and forgets them. If older bytes were dropped, the first piece starts at
  // a line.
  std::deque<Piece> take() {
    if (is_cut_ && !pieces_.empty()) {
      std::string& first = pieces_.front().bytes;
      const std::size_t newline = first.find('\n');
      if (newline != std::string::npos) first.erase(0, newline + 1);
    }
    size_ = 0;
    is_cut_ = false;
    return std::exchange(pieces_, {});
  }
  bool has_ended(int stream) const { return ended_[stream == 2 ? 1 : 0]; }

 private:
  // Size up to which writes share a piece. Bytes are dropped in whole pieces.
  static constexpr std::size_t kPieceBytes = 4u << 10;

  // Appends to the newest piece as many bytes as fit, and returns their number.
  std::size_t add_some(int stream, std::string_view bytes) {
    if (pieces_.empty() || pieces_.back().stream != stream ||
        pieces_.back().bytes.size() >= kPieceBytes)
      pieces_.push_back({stream, {}});
    std::string& piece = pieces_.back().bytes;
    const std::size_t count = std::min(bytes.size(), kPieceBytes - piece.size());
    piece.append(bytes.substr(0, count));
    size_ += count;
    return count;
  }

  std::deque<Piece> pieces_;
  std::size_t size_ = 0;            // Bytes in pieces_.
  bool is_cut_ = false;             // Older bytes were dropped.
  bool ended_[2] = {false, false};  // By stream: it has ended.
};

}  // namespace ivy
