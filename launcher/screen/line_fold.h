// SPDX-License-Identifier: Apache-2.0
// --dedup: turns equal lines that many ranks print within a short window into one line with the
// list of these ranks.
//
// A line waits in a *group* until its window is over, every rank has printed it, or too many bytes
// wait; the lines of one rank keep their order. A Python traceback is one text, so the tracebacks
// of several ranks do not interleave. Pure. Not thread-safe.
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
  // For take_due(): every line, whether due or not.
  static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();
  // Limit of held bytes. Above it, the oldest lines are due immediately.
  static constexpr std::size_t kMaxBytes = 1u << 20;

  // Limit of one traceback; the rest of a longer one is treated as ordinary lines.
  static constexpr std::size_t kMaxBlockBytes = 64u << 10;

  // A line, or the lines of a traceback, and the ranks that printed it in the order in which they
  // did.
  struct Group {
    int stream = 1;
    std::string text;
    std::vector<int> ranks;
    std::int64_t since_ns = 0;  // When it arrived; of a traceback, its last line.
    bool is_open = false;       // A traceback whose last line has not arrived yet.
    // For a traceback, the first group that it may join without overtaking an earlier line of its
    // rank.
    std::uint64_t lowest = 0;
  };

  // A line that this many ranks have printed is due immediately.
  void set_rank_count(std::size_t ranks) { rank_count_ = ranks; }
  // Adds a line that a rank has printed.
  void add(int rank, int stream, std::string_view text, std::int64_t now_ns);
  // Returns the oldest line if it is due. Call it until it returns nothing.
  std::optional<Group> take_due(std::int64_t now_ns);
  // Returns the oldest line if this rank has a held line, and else nullopt. Call it until it
  // returns nullopt, before the rank's next line is written elsewhere.
  std::optional<Group> take_before(int rank);
  // Returns the oldest line, whether due or not.
  std::optional<Group> take_any();
  // Returns the time from which take_due() returns a line, or nullopt if no line is held.
  std::optional<std::int64_t> due_ns() const;
  bool is_empty() const { return groups_.empty(); }

 private:
  std::optional<std::uint64_t> joinable(std::uint64_t lowest, const std::string& key) const;
  std::uint64_t lowest_of(int rank) const;
  bool continue_block(int rank, int stream, std::string_view text, std::int64_t now_ns);
  void close_block(std::uint64_t number);
  void drop_empty();

  std::size_t rank_count_ = 0;
  // Groups are numbered consecutively; `first_` is the number of groups_.front().
  std::deque<Group> groups_;
  std::uint64_t first_ = 0;
  std::size_t bytes_ = 0;  // Text in groups_.
  // For each text, the numbers of its groups.
  std::unordered_map<std::string, std::deque<std::uint64_t>> by_text_;
  // For each rank, the number after its newest group: its next line must not go before that.
  std::unordered_map<int, std::uint64_t> next_;
  // Tracebacks whose last line has not arrived, by rank and stream.
  std::map<std::pair<int, int>, std::uint64_t> blocks_;
};

}  // namespace ivy
