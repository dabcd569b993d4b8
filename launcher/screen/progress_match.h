// SPDX-License-Identifier: Apache-2.0
// --progress-match: the largest step that the ranks of an attempt have printed. Reads the bytes of
// both streams of every rank, line by line; '\r' also ends a line, because progress bars print
// their steps so. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/options/pattern.h"

namespace ivy {

class ProgressMatch {
 public:
  // pattern: its first group matches the number of the step.
  explicit ProgressMatch(Pattern pattern) : pattern_(std::move(pattern)) {}

  // Begins an attempt.
  void begin();
  // Takes bytes of one stream (1 or 2) of one rank. end: the stream has ended.
  void feed(int rank, int stream, std::string_view bytes, bool end);
  // Returns the largest step of this attempt; none if no line matched.
  std::optional<double> largest() const { return largest_; }
  // Returns the first step of this attempt.
  std::optional<double> first() const { return first_; }

 private:
  // Bytes of a line in which the pattern is searched; the rest of a longer line is ignored.
  static constexpr std::size_t kMaxLineBytes = 4096;

  void match(std::string_view line);

  const Pattern pattern_;
  std::map<std::pair<int, int>, std::string> unfinished_;  // By rank and stream.
  std::optional<double> largest_, first_;
};

}  // namespace ivy
