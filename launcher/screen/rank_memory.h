// SPDX-License-Identifier: Apache-2.0
// The last bytes of a rank's output, both streams in their order, for --show-ranks failed. Pure;
// thread: the loop's.
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
  // The newest output of each rank is kept, up to this size.
  static constexpr std::size_t kMostBytes = 64u << 10;

  void add(int stream, std::string_view bytes, bool end) {
    if (end) ended_[stream == 2 ? 1 : 0] = true;
    if (bytes.size() > kMostBytes) {
      bytes.remove_prefix(bytes.size() - kMostBytes);
      is_cut_ = true;
    }
    while (!bytes.empty()) bytes.remove_prefix(add_some(stream, bytes));
    while (size_ > kMostBytes) {
      size_ -= pieces_.front().bytes.size();
      pieces_.pop_front();
      is_cut_ = true;
    }
  }
  // Returns all kept bytes; if older ones were dropped, starting at a line.
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
  // Largest piece that is dropped at a time: small writes share one.
  static constexpr std::size_t kPieceBytes = 4u << 10;

  // Appends as many of the bytes as fit into the newest piece, and returns their number.
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
  std::size_t size_ = 0;
  bool is_cut_ = false;
  bool ended_[2] = {false, false};
};

}  // namespace ivy
