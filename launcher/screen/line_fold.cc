#include "launcher/screen/line_fold.h"

#include <algorithm>

namespace ivy {
namespace {

// Lines of the two streams are never one.
std::string key_of(int stream, std::string_view text) {
  std::string key(1, stream == 2 ? '!' : ' ');
  return key.append(text);
}

}  // namespace

// The oldest group of this text that keeps the rank's order: behind every line that it has printed.
std::optional<std::uint64_t> LineFold::joinable(int rank, const std::string& key) const {
  const auto found = by_text_.find(key);
  if (found == by_text_.end()) return std::nullopt;
  const std::deque<std::uint64_t>& numbers = found->second;
  const auto next = next_.find(rank);
  const std::uint64_t lowest = next == next_.end() ? 0 : next->second;
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), lowest);
  return at == numbers.end() ? std::nullopt : std::optional(*at);
}

void LineFold::add(int rank, int stream, std::string_view text, std::int64_t now_ns) {
  const std::string key = key_of(stream, text);
  std::optional<std::uint64_t> number = joinable(rank, key);
  if (!number) {
    number = first_ + groups_.size();
    by_text_[key].push_back(*number);
    groups_.push_back({stream, std::string(text), {}, now_ns});
    bytes_ += text.size();
  }
  groups_[*number - first_].ranks.push_back(rank);
  next_[rank] = *number + 1;
}

std::optional<LineFold::Group> LineFold::take_any() {
  if (groups_.empty()) return std::nullopt;
  Group group = std::move(groups_.front());
  groups_.pop_front();
  ++first_;
  bytes_ -= group.text.size();
  const auto known = by_text_.find(key_of(group.stream, group.text));
  known->second.pop_front();
  if (known->second.empty()) by_text_.erase(known);
  return group;
}

std::optional<std::int64_t> LineFold::due_ns() const {
  if (groups_.empty()) return std::nullopt;
  const bool waits = groups_.front().ranks.size() < everyone_ && bytes_ <= kMostBytes;
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
