// SPDX-License-Identifier: Apache-2.0
// --dedup: turns equal lines that many ranks print within a short window into one line with the
// list of these ranks.
//
// A line waits in a *group* until its window is over, every rank has printed it, or too many bytes
// wait; the lines of one rank keep their order. A Python traceback is one text, so the tracebacks
// of several ranks do not interleave. Pure. Not thread-safe.
//
// Groups are numbered in the order of their first lines and taken in this order. A rank joins only
// groups from next_[rank] on, the number after its newest group, so that its lines stay in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ivy {

class LineFold {
 public:
  static constexpr std::int64_t kWindowNs = 100'000'000;  // How long a line is held.
  // Passed to take_due() to take every line, whether due or not.
  static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();
  // If more bytes are held, the oldest lines are due immediately.
  static constexpr std::size_t kMaxBytes = 1u << 20;
  // The rest of a longer traceback is treated as ordinary lines.
  static constexpr std::size_t kMaxBlockBytes = 64u << 10;

  // A line, or the lines of a traceback, and the ranks that printed it, in the order in which they
  // did.
  struct Group {
    int stream = 1;
    std::string text;
    std::vector<int> ranks;
    std::int64_t since_ns = 0;  // When it arrived; of a traceback, its last line.
    bool is_open = false;       // A traceback whose last line has not arrived yet.
    // The value of next_[rank] when a traceback began, so that it may still join an older group.
    std::uint64_t lowest = 0;
  };

  // A line that this many ranks have printed is due immediately.
  void set_rank_count(std::size_t ranks) { rank_count_ = ranks; }
  // Adds a line that a rank has printed.
  void add(int rank, int stream, std::string_view text, std::int64_t now_ns);
  // Returns the oldest line if it is due. Call it until it returns nothing.
  std::optional<Group> take_due(std::int64_t now_ns);
  // Returns the oldest line if a line of this rank is held. Call it until it returns nothing,
  // before the rank's next line is written elsewhere.
  std::optional<Group> take_if_printed_by(int rank);
  // Returns the oldest line, whether due or not.
  std::optional<Group> take_oldest();
  // Returns the time from which take_due() returns a line, or nothing if no line is held.
  std::optional<std::int64_t> due_ns() const;
  bool is_empty() const { return groups_.empty(); }

 private:
  Group& group(std::uint64_t number) { return groups_[number - first_]; }
  std::uint64_t lowest_of(int rank) const;
  std::optional<std::uint64_t> joinable(std::uint64_t lowest, const std::string& key) const;
  bool continue_block(int rank, int stream, std::string_view text, std::int64_t now_ns);
  void close_block(std::uint64_t number);
  void drop_empty();

  std::size_t rank_count_ = 0;
  std::deque<Group> groups_;  // groups_[n - first_] is group n.
  std::uint64_t first_ = 0;
  std::size_t bytes_ = 0;  // Text in groups_.
  // For each stream and text (key_of()), the numbers of its groups, ascending.
  std::unordered_map<std::string, std::deque<std::uint64_t>> by_text_;
  // For each rank, the lowest group that its next line may join.
  std::unordered_map<int, std::uint64_t> next_;
  // Tracebacks whose last line has not arrived, by rank and stream.
  std::map<std::pair<int, int>, std::uint64_t> blocks_;
};

}  // namespace ivy
