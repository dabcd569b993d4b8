// SPDX-License-Identifier: Apache-2.0
// next() returns a whole line without a copy if it can, and else calls absorb(), which collects an
// ordinary line in partial_. Once the cursor moves up, absorb_row() collects the rows of a group in
// rows_ instead; rows that are final move to ready_, from which next() returns them first.
#include "launcher/screen/line_splitter.h"

#include <algorithm>
#include <utility>

namespace ivy {
namespace {

// A move of the cursor to a line above, in the complete and numeric form that ControlFilter leaves.
struct MoveUp {
  std::size_t at = std::string_view::npos;
  std::size_t size = 0;
  std::size_t lines = 1;
};

MoveUp find_up(std::string_view text) {
  constexpr std::string_view kStart = "\x1b[";
  for (std::size_t at = text.find(kStart); at != std::string_view::npos;
       at = text.find(kStart, at + 1)) {
    std::size_t end = at + kStart.size();
    std::size_t lines = 0;
    for (; end < text.size() && text[end] >= '0' && text[end] <= '9'; ++end)
      lines = std::min<std::size_t>(lines * 10 + static_cast<std::size_t>(text[end] - '0'),
                                    LineSplitter::kMaxRows);
    if (end < text.size() && (text[end] == 'A' || text[end] == 'F'))
      return {at, end + 1 - at, std::max<std::size_t>(lines, 1)};
  }
  return {};
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(' ') == std::string_view::npos;
}

}  // namespace

std::optional<LinePiece> LineSplitter::next(std::string_view& bytes) {
  if (!ready_.empty()) return give_ready();
  // The common case, a whole line in these bytes, is returned without a copy.
  if (partial_.empty() && taken_bytes_ == 0 && !is_update()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view line = bytes.substr(0, newline);
    if (newline != std::string_view::npos && newline <= max_line_bytes_ &&
        line.find('\r') == std::string_view::npos && (!folds_groups_ || find_up(line).size == 0)) {
      bytes.remove_prefix(newline + 1);
      return LinePiece{line, LineEnd::kNewline, false};
    }
  }
  return absorb(bytes);
}

std::optional<LinePiece> LineSplitter::absorb(std::string_view& bytes) {
  while (!bytes.empty()) {
    if (!rows_.empty()) {
      absorb_row(bytes);
      if (!ready_.empty()) return give_ready();
      continue;
    }
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
    std::string_view run = bytes.substr(0, bytes.find('\n'));
    run = run.substr(0, run.find('\r'));
    if (folds_groups_) {
      const MoveUp up = find_up(run);
      if (up.at == 0) {
        // The start of the line is on the console already, so it cannot become a row of a group.
        if (taken_bytes_ > 0) return give(LineEnd::kNewline);
        bytes.remove_prefix(up.size);
        rows_.assign(1, Row{std::exchange(partial_, {})});
        row_ = 0;
        for (std::size_t line = 0; line < up.lines; ++line) move_up();
        continue;
      }
      run = run.substr(0, up.at);
    }
    if (return_pending_) {
      if (auto piece = step_back()) return piece;
    }
    const std::size_t used = taken_bytes_ + partial_.size();
    const std::size_t room = max_line_bytes_ - std::min(used, max_line_bytes_);
    partial_.append(run.substr(0, room));
    bytes.remove_prefix(std::min(run.size(), room));
    if (run.size() > room) return give(LineEnd::kTooLong);
  }
  return std::nullopt;
}

// Handles a '\r' that was not the first half of "\r\n": the line starts again.
std::optional<LinePiece> LineSplitter::step_back() {
  return_pending_ = false;
  if (taken_bytes_ == 0) {
    update_ = true;
    partial_.clear();
    return std::nullopt;
  }
  // The start of the line is on the console already and cannot be withdrawn, so it ends there.
  const LinePiece piece = give(LineEnd::kNewline);
  update_ = true;
  return piece;
}

LinePiece LineSplitter::give(LineEnd end) {
  given_.swap(partial_);
  partial_.clear();
  const bool continued = taken_bytes_ > 0;
  taken_bytes_ = 0;
  if (end == LineEnd::kNewline) {
    update_ = false;
    return_pending_ = false;
  }
  return LinePiece{given_, end, continued};
}

std::optional<LinePiece> LineSplitter::give_ready() {
  given_ = std::move(ready_.front().text);
  const LineEnd end = ready_.front().end;
  ready_.pop_front();
  return LinePiece{given_, end, false};
}

// Moves the cursor to the row above. Above the first known row, a row is added: it was printed as
// an ordinary line before.
void LineSplitter::move_up() {
  lines_below_ = 0;
  is_written_ = false;
  return_pending_ = true;
  update_ = false;
  if (row_ > 0) {
    --row_;
  } else if (rows_.size() < kMaxRows) {
    rows_.insert(rows_.begin(), Row{});
  }
}

void LineSplitter::absorb_row(std::string_view& bytes) {
  const char first = bytes.front();
  if (first == '\n') {
    bytes.remove_prefix(1);
    return end_row();
  }
  if (first == '\r') {
    bytes.remove_prefix(1);
    return_pending_ = true;
    return;
  }
  std::string_view run = bytes.substr(0, bytes.find('\n'));
  run = run.substr(0, run.find('\r'));
  const MoveUp up = find_up(run);
  if (up.at == 0) {
    bytes.remove_prefix(up.size);
    for (std::size_t line = 0; line < up.lines; ++line) move_up();
    return;
  }
  run = run.substr(0, up.at);
  bytes.remove_prefix(run.size());
  write_row(run);
  // Bytes beyond the limit continue as an ordinary line.
  if (!run.empty()) bytes = {run.data(), bytes.size() + run.size()};
}

// A newline moves the cursor to the row below. Below the last row of a group that is being redrawn,
// the next line is either another bar or the first line after the group. In both cases the rows
// above it are final.
void LineSplitter::end_row() {
  return_pending_ = true;
  const bool was_written = std::exchange(is_written_, false);
  if (row_ + 1 < rows_.size()) {
    ++row_;
    return;
  }
  if (was_written && ++lines_below_ == 2) return end_group();
  if (was_written) release_rows(row_);
  if (rows_.size() == kMaxRows) release_rows(1);
  rows_.emplace_back();
  row_ = rows_.size() - 1;
}

// Replaces the row's text, or appends to it, up to the limit of all rows. Removes the bytes written
// from `run`.
void LineSplitter::write_row(std::string_view& run) {
  Row& row = rows_[row_];
  if (std::exchange(return_pending_, false)) row.text.clear();
  is_written_ = true;
  std::size_t used = 0;
  for (const Row& other : rows_) used += other.text.size();
  const std::size_t room = max_line_bytes_ - std::min(used, max_line_bytes_);
  row.text.append(run.substr(0, room));
  run.remove_prefix(std::min(run.size(), room));
  if (!run.empty()) end_group();
  if (!run.empty() && !ready_.empty()) ready_.back().end = LineEnd::kTooLong;
}

void LineSplitter::release_rows(std::size_t count) {
  const auto end = rows_.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto row = rows_.begin(); row != end; ++row)
    if (row->text != row->last_taken && !is_blank(row->text))
      ready_.push_back({std::move(row->text), LineEnd::kNewline});
  rows_.erase(rows_.begin(), end);
}

void LineSplitter::end_group() {
  release_rows(rows_.size());
  row_ = 0;
  lines_below_ = 0;
  is_written_ = return_pending_ = update_ = false;
}

std::vector<std::string_view> LineSplitter::state() const {
  std::vector<std::string_view> state;
  if (rows_.empty()) state.emplace_back(partial_);
  for (const Row& row : rows_) state.emplace_back(row.text);
  std::erase_if(state, is_blank);
  return state;
}

std::vector<std::string_view> LineSplitter::take_new_state() {
  if (rows_.empty()) return state();
  std::vector<std::string_view> state;
  for (Row& row : rows_) {
    if (row.text != row.last_taken && !is_blank(row.text)) state.emplace_back(row.text);
    row.last_taken = row.text;
  }
  return state;
}

std::string LineSplitter::take_partial() {
  taken_bytes_ += partial_.size();
  return std::exchange(partial_, {});
}

std::optional<LinePiece> LineSplitter::finish() {
  if (!rows_.empty()) end_group();
  if (!ready_.empty()) return give_ready();
  if (partial_.empty() && taken_bytes_ == 0) return std::nullopt;
  return give(LineEnd::kNewline);
}

}  // namespace ivy
