// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/line_fold.h"

#include <algorithm>

namespace ivy {
namespace {

// Returns the key of a line in by_text_. It contains the stream, because lines of the two streams
// are never folded into one.
std::string key_of(int stream, std::string_view text) {
  std::string key(1, stream == 2 ? '!' : ' ');
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
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), lowest);
  return at == numbers.end() ? std::nullopt : std::optional(*at);
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
    groups_.push_back({stream, std::string(text), {}, now_ns, is_block, lowest_of(rank)});
    bytes_ += text.size();
  }
  groups_[*number - first_].ranks.push_back(rank);
  next_[rank] = *number + 1;
}

// Appends the line to the rank's open traceback, if there is one. All lines of a traceback are
// indented but the last, which names the exception.
bool LineFold::continue_block(int rank, int stream, std::string_view text, std::int64_t now_ns) {
  const auto found = blocks_.find({rank, stream});
  if (found == blocks_.end()) return false;
  const std::uint64_t number = found->second;
  Group& group = groups_[number - first_];
  group.text.append("\n").append(text);
  group.since_ns = now_ns;
  bytes_ += text.size() + 1;
  const bool is_last = !text.starts_with(' ') && !text.starts_with('\t');
  if (is_last || group.text.size() > kMaxBlockBytes) close_block(number);
  return true;
}

// Closes a traceback and adds its rank to an equal one, if there is one, unless the rank has
// printed something since.
void LineFold::close_block(std::uint64_t number) {
  Group& group = groups_[number - first_];
  const int rank = group.ranks.front();
  blocks_.erase({rank, group.stream});
  group.is_open = false;
  const std::string key = key_of(group.stream, group.text);
  std::deque<std::uint64_t>& numbers = by_text_[key];
  const auto equal = std::lower_bound(numbers.begin(), numbers.end(), group.lowest);
  if (equal == numbers.end() || next_[rank] != number + 1) {
    numbers.insert(std::lower_bound(numbers.begin(), numbers.end(), number), number);
    return;
  }
  groups_[*equal - first_].ranks.push_back(rank);
  next_[rank] = std::max(*equal, number) + 1;
  bytes_ -= group.text.size();
  group.ranks.clear();
  drop_empty();
}

// Removes groups whose only rank has joined another group.
void LineFold::drop_empty() {
  while (!groups_.empty() && groups_.front().ranks.empty()) {
    groups_.pop_front();
    ++first_;
  }
}

std::optional<LineFold::Group> LineFold::take_any() {
  if (groups_.empty()) return std::nullopt;
  if (groups_.front().is_open) close_block(first_);
  if (groups_.empty()) return std::nullopt;
  Group group = std::move(groups_.front());
  groups_.pop_front();
  ++first_;
  bytes_ -= group.text.size();
  const auto known = by_text_.find(key_of(group.stream, group.text));
  known->second.pop_front();
  if (known->second.empty()) by_text_.erase(known);
  drop_empty();
  return group;
}

std::optional<std::int64_t> LineFold::due_ns() const {
  if (groups_.empty()) return std::nullopt;
  const bool waits = groups_.front().ranks.size() < rank_count_ && bytes_ <= kMaxBytes;
  return groups_.front().since_ns + (waits ? kWindowNs : 0);
}

std::optional<LineFold::Group> LineFold::take_due(std::int64_t now_ns) {
  const std::optional<std::int64_t> due = due_ns();
  return due && *due <= now_ns ? take_any() : std::nullopt;
}

std::optional<LineFold::Group> LineFold::take_before(int rank) {
  const auto next = next_.find(rank);
  return next != next_.end() && next->second > first_ ? take_any() : std::nullopt;
}

}  // namespace ivy
