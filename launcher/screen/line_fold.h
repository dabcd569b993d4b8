// SPDX-License-Identifier: Apache-2.0
// --dedup: equal lines that many ranks print within a short window become one line with all of
// these ranks. A line is held for the window at most, and the lines of a rank keep their order. A
// Python traceback counts as one text, so tracebacks of several ranks do not interleave. Pure;
// thread: any.
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
  static constexpr std::int64_t kWindowNs = 100'000'000;
  // For take_due(): every line, due or not.
  static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();
  // Limit of held bytes; above it the oldest lines are released early.
  static constexpr std::size_t kMostBytes = 1u << 20;

  // A longer traceback is written in pieces.
  static constexpr std::size_t kMostBlockBytes = 64u << 10;

  // One line, or the lines of a traceback, and the ranks that have printed it, in that order.
  struct Group {
    int stream = 1;
    std::string text;
    std::vector<int> ranks;
    std::int64_t since_ns = 0;
    bool is_open = false;      // A traceback whose last line has not arrived yet.
    std::uint64_t lowest = 0;  // It may join an equal group from this number on.
  };

  // A line that `ranks` ranks have printed is released immediately.
  void set_everyone(std::size_t ranks) { everyone_ = ranks; }
  void add(int rank, int stream, std::string_view text, std::int64_t now_ns);
  // Returns the oldest line if it is due. Call it until it returns nothing.
  std::optional<Group> take_due(std::int64_t now_ns);
  // Returns the oldest line up to the newest of this rank, whose next line must follow them.
  std::optional<Group> take_before(int rank);
  // The oldest line, whatever its time.
  std::optional<Group> take_any();
  // The time at which take_due() will return a line; nothing: no line is held.
  std::optional<std::int64_t> due_ns() const;
  bool is_empty() const { return groups_.empty(); }

 private:
  std::optional<std::uint64_t> joinable(std::uint64_t lowest, const std::string& key) const;
  std::uint64_t lowest_of(int rank) const;
  bool continue_block(int rank, int stream, std::string_view text, std::int64_t now_ns);
  void close_block(std::uint64_t number);
  void drop_empty();

  std::size_t everyone_ = 0;
  // Groups are numbered consecutively; `first_` is the number of the first group here.
  std::deque<Group> groups_;
  std::uint64_t first_ = 0;
  std::size_t bytes_ = 0;
  // The numbers of the groups of a text.
  std::unordered_map<std::string, std::deque<std::uint64_t>> by_text_;
  // For each rank, the number after its newest group.
  std::unordered_map<int, std::uint64_t> next_;
  // The open tracebacks, by rank and stream.
  std::map<std::pair<int, int>, std::uint64_t> blocks_;
};

}  // namespace ivy
