// SPDX-License-Identifier: Apache-2.0
// Bytes of one stream to lines. Pure; thread: any.
//
// A line ends with a newline, or when it exceeds the longest length allowed. "\r\n" ends a line
// like
// "\n". A lone '\r' returns to the start of the line, whose text is then replaced, so only the
// newest state of a progress bar is kept. With set_groups(), moves of the cursor to a line above
// (ESC [ n A, ESC [ n F) do the same for a group of rows, such as nested progress bars: the newest
// state of the group is kept until two lines follow below it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

enum class LineEnd {
  kNewline,  // The stream had a newline here (or the line was overwritten after it had been shown).
  kTooLong,  // Split because of its length; the line continues.
};

struct LinePiece {
  std::string_view text;  // Without its end; valid until the next call.
  LineEnd end = LineEnd::kNewline;
  bool continued = false;  // take_partial() has returned the beginning of this line.
};

class LineSplitter {
 public:
  // Longest line in bytes: bounds the memory of one stream without newlines.
  static constexpr std::size_t kMaxLineBytes = 64u << 10;
  // Without labels, in a pipe or a file that a program may read.
  static constexpr std::size_t kMaxPlainLineBytes = 1u << 20;
  // Rows of a group; together they hold no more than a line.
  static constexpr std::size_t kMaxRows = 8;
  void set_longest(std::size_t bytes) { longest_ = bytes; }
  void set_groups(bool folded) { folds_groups_ = folded; }

  // Returns the next piece and removes the bytes read from `bytes`. Nothing: all bytes were read,
  // and an unfinished line may be kept.
  std::optional<LinePiece> next(std::string_view& bytes);

  // True if an unfinished line has not been shown.
  bool has_partial() const { return !partial_.empty() || !rows_.empty(); }
  // True if the unfinished line is overwritten repeatedly: show its state, do not take it.
  bool is_update() const { return update_ || return_pending_ || !rows_.empty(); }
  std::string_view partial() const { return partial_; }
  // The state of such a line, or of the rows of a group from the top.
  std::vector<std::string_view> state() const;
  // The same without the rows of a group that have not changed since the last call. The caller has
  // shown those permanently, and next() does not return a row that does not change again.
  std::vector<std::string_view> take_new_state();
  // Returns the unfinished line; later bytes of it are returned as `continued`.
  std::string take_partial();
  // The stream has ended: the rows of a group one by one, then the last line, if it had no newline.
  std::optional<LinePiece> finish();

 private:
  struct Row {
    std::string text = {};
    std::string shown = {};  // Its text when take_new_state() gave it out.
  };
  struct Ready {
    std::string text;
    LineEnd end;
  };
  std::optional<LinePiece> absorb(std::string_view& bytes);
  std::optional<LinePiece> go_back();
  LinePiece give(LineEnd end);
  std::optional<LinePiece> give_ready();
  void go_up();
  void absorb_row(std::string_view& bytes);
  void end_row();
  void write_row(std::string_view& bytes);
  void release_rows(std::size_t count);
  void end_group();

  std::size_t longest_ = kMaxLineBytes;
  std::string partial_;
  std::string given_;      // Backs the view of the last piece.
  std::size_t shown_ = 0;  // Bytes of this line that take_partial() has given out.
  bool update_ = false;
  // The last byte was '\r', and the next one decides what it meant; or the cursor has arrived in
  // this row of a group.
  bool return_pending_ = false;
  bool folds_groups_ = false;
  std::vector<Row> rows_;    // A group of at least two; empty: the line is on its own, in partial_.
  std::size_t row_ = 0;      // The cursor's.
  bool is_written_ = false;  // Since the cursor arrived in its row.
  int lines_below_ = 0;      // That ended below the group since the cursor was last moved up.
  std::deque<Ready> ready_;  // To be given out before more bytes are read; at most kMaxRows + 1.
};

}  // namespace ivy
