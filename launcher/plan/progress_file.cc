// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/progress_file.h"

#include <charconv>
#include <cmath>
#include <compare>
#include <cstdio>

namespace ivy {
namespace {

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", number);
  return text;
}

ProgressMove move_between(const ProgressSample& before, const ProgressSample& now) {
  if (now.path.empty()) return before.path.empty() ? ProgressMove::kNone : ProgressMove::kBackward;
  if (before.path.empty()) return ProgressMove::kForward;
  const std::partial_ordering order = now.number && before.number
                                          ? *now.number <=> *before.number
                                          : now.mtime_ns <=> before.mtime_ns;
  if (order == std::partial_ordering::greater) return ProgressMove::kForward;
  return order == std::partial_ordering::less ? ProgressMove::kBackward : ProgressMove::kNone;
}

}  // namespace

std::optional<double> number_in_file(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return number;
}

ProgressMove ProgressFile::take(const ProgressSample& sample) {
  if (!sample.is_known) return ProgressMove::kUnknown;
  last_ = sample;
  if (!best_) {
    best_ = sample;
    return ProgressMove::kUnknown;
  }
  const ProgressMove move = move_between(*best_, sample);
  if (move == ProgressMove::kForward) best_ = sample;
  return move;
}

std::string ProgressFile::text() const {
  if (!best_) return "its files could not be read";
  if (last_.path.empty())
    return best_->path.empty() ? "no file matches" : "no file matches any longer";
  const bool is_back = move_between(*best_, last_) == ProgressMove::kBackward;
  if (last_.number && best_->number)
    return last_.path + (is_back ? " has " : " still has ") + number_text(*last_.number) +
           (is_back ? ", after " + number_text(*best_->number) : "");
  if (!is_back) return "no file is newer than " + last_.path;
  return last_.path == best_->path
             ? last_.path + " is older than before"
             : "the newest file is " + last_.path + ", which is older than " + best_->path + " was";
}

}  // namespace ivy
