#include "launcher/screen/line_splitter.h"

#include <algorithm>
#include <utility>

namespace ivy {

std::optional<LinePiece> LineSplitter::next(std::string_view& bytes) {
  // The common case, a whole line in these bytes, is given out without a copy.
  if (partial_.empty() && shown_ == 0 && !is_update()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view line = bytes.substr(0, newline);
    if (newline != std::string_view::npos && newline <= longest_ &&
        line.find('\r') == std::string_view::npos) {
      bytes.remove_prefix(newline + 1);
      return LinePiece{line, LineEnd::kNewline, false};
    }
  }
  return absorb(bytes);
}

std::optional<LinePiece> LineSplitter::absorb(std::string_view& bytes) {
  while (!bytes.empty()) {
    const char first = bytes.front();
    if (first == '\n') {
      bytes.remove_prefix(1);
      return give(LineEnd::kNewline);
    }
    if (first == '\r') {
      bytes.remove_prefix(1);
      return_pending_ = true;
      continue;
    }
    if (return_pending_) {
      if (auto piece = go_back()) return piece;
    }
    std::string_view run = bytes.substr(0, bytes.find('\n'));
    run = run.substr(0, run.find('\r'));
    const std::size_t used = shown_ + partial_.size();
    const std::size_t room = longest_ - std::min(used, longest_);
    partial_.append(run.substr(0, room));
    bytes.remove_prefix(std::min(run.size(), room));
    if (run.size() > room) return give(LineEnd::kTooLong);
  }
  return std::nullopt;
}

// A '\r' that was not the first half of "\r\n": the line starts anew.
std::optional<LinePiece> LineSplitter::go_back() {
  return_pending_ = false;
  if (shown_ == 0) {
    update_ = true;
    partial_.clear();
    return std::nullopt;
  }
  // Its beginning stands on the console already and cannot be taken back.
  const LinePiece piece = give(LineEnd::kNewline);
  update_ = true;
  return piece;
}

LinePiece LineSplitter::give(LineEnd end) {
  given_.swap(partial_);
  partial_.clear();
  const bool continued = shown_ > 0;
  shown_ = 0;
  if (end == LineEnd::kNewline) {
    update_ = false;
    return_pending_ = false;
  }
  return LinePiece{given_, end, continued};
}

std::string LineSplitter::take_partial() {
  shown_ += partial_.size();
  return std::exchange(partial_, {});
}

std::optional<LinePiece> LineSplitter::finish() {
  if (partial_.empty() && shown_ == 0) return std::nullopt;
  return give(LineEnd::kNewline);
}

}  // namespace ivy
