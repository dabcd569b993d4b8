// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/line_fold.h"

#include <algorithm>

namespace ivy {
namespace {

constexpr int kErrorStream = 2;

// Returns the key of a line in by_text_. It contains the stream, because lines of the two streams
// are never folded into one.
std::string key_of(int stream, std::string_view text) {
  std::string key(1, stream == kErrorStream ? '!' : ' ');
  return key.append(text);
}

}  // namespace

std::uint64_t LineFold::lowest_of(int rank) const {
  const auto next = next_.find(rank);
  return next == next_.end() ? 0 : next->second;
}

// Returns the oldest group of this text whose number is at least `lowest`.
std::optional<std::uint64_t> LineFold::joinable(std::uint64_t lowest,
                                                const std::string& key) const {
  const auto found = by_text_.find(key);
  if (found == by_text_.end()) return std::nullopt;
  const std::deque<std::uint64_t>& numbers = found->second;
  const auto oldest = std::lower_bound(numbers.begin(), numbers.end(), lowest);
  return oldest == numbers.end() ? std::nullopt : std::optional(*oldest);
}

void LineFold::add(int rank, int stream, std::string_view text, std::int64_t now_ns) {
  if (continue_block(rank, stream, text, now_ns)) return;
  const std::string key = key_of(stream, text);
  const bool is_block = text == "Traceback (most recent call last):";
  std::optional<std::uint64_t> number;
  if (!is_block) number = joinable(lowest_of(rank), key);
  if (!number) {
    number = first_ + groups_.size();
    if (is_block)
      blocks_[{rank, stream}] = *number;
    else
      by_text_[key].push_back(*number);
    groups_.push_back({.stream = stream,
                       .text = std::string(text),
                       .ranks = {},
                       .since_ns = now_ns,
                       .is_open = is_block,
                       .lowest = lowest_of(rank)});
    bytes_ += text.size();
  }
  group(*number).ranks.push_back(rank);
  next_[rank] = *number + 1;
}

// Appends the line to the rank's open traceback and returns true, or returns false if it has none.
// Every line but the last is indented; the last names the exception.
bool LineFold::continue_block(int rank, int stream, std::string_view text, std::int64_t now_ns) {
  const auto found = blocks_.find({rank, stream});
  if (found == blocks_.end()) return false;
  const std::uint64_t number = found->second;
  Group& block = group(number);
  block.text.append("\n").append(text);
  block.since_ns = now_ns;
  bytes_ += text.size() + 1;
  const bool is_last = !text.starts_with(' ') && !text.starts_with('\t');
  if (is_last || block.text.size() > kMaxBlockBytes) close_block(number);
  return true;
}

// Closes a traceback, and lets its rank join an equal one instead, unless the rank has printed
// something since. The equal group may be older or newer than this one.
void LineFold::close_block(std::uint64_t number) {
  Group& block = group(number);
  const int rank = block.ranks.front();
  blocks_.erase({rank, block.stream});
  block.is_open = false;
  const std::string key = key_of(block.stream, block.text);
  const std::optional<std::uint64_t> equal = joinable(block.lowest, key);
  if (!equal || next_[rank] != number + 1) {
    std::deque<std::uint64_t>& numbers = by_text_[key];
    const auto place = std::lower_bound(numbers.begin(), numbers.end(), number);
    numbers.insert(place, number);
    return;
  }
  group(*equal).ranks.push_back(rank);
  next_[rank] = std::max(*equal, number) + 1;
  bytes_ -= block.text.size();
  block.ranks.clear();
  drop_empty();
}

// Removes groups whose only rank has joined another group.
void LineFold::drop_empty() {
  while (!groups_.empty() && groups_.front().ranks.empty()) {
    groups_.pop_front();
    ++first_;
  }
}

std::optional<LineFold::Group> LineFold::take_oldest() {
  if (groups_.empty()) return std::nullopt;
  if (groups_.front().is_open) close_block(first_);
  if (groups_.empty()) return std::nullopt;
  Group oldest = std::move(groups_.front());
  groups_.pop_front();
  ++first_;
  bytes_ -= oldest.text.size();
  const auto same_text = by_text_.find(key_of(oldest.stream, oldest.text));
  same_text->second.pop_front();
  if (same_text->second.empty()) by_text_.erase(same_text);
  drop_empty();
  return oldest;
}

std::optional<std::int64_t> LineFold::due_ns() const {
  if (groups_.empty()) return std::nullopt;
  const bool waits = groups_.front().ranks.size() < rank_count_ && bytes_ <= kMaxBytes;
  return groups_.front().since_ns + (waits ? kWindowNs : 0);
}

std::optional<LineFold::Group> LineFold::take_due(std::int64_t now_ns) {
  const std::optional<std::int64_t> due = due_ns();
  return due && *due <= now_ns ? take_oldest() : std::nullopt;
}

std::optional<LineFold::Group> LineFold::take_if_printed_by(int rank) {
  const auto next = next_.find(rank);
  return next != next_.end() && next->second > first_ ? take_oldest() : std::nullopt;
}

}  // namespace ivy
