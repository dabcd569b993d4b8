// SPDX-License-Identifier: Apache-2.0
// Splits the bytes of one stream into lines. Pure. Not thread-safe.
//
// A line ends with a newline ("\n" or "\r\n"), or when it exceeds the longest length allowed. A
// '\r' without '\n' returns to the start of the line, and the text that follows replaces it, so
// only the newest state of a progress bar is kept. With set_groups(), moves of the cursor to a line
// above (ESC [ n A, ESC [ n F) do the same for a *group* of rows, such as nested progress bars: the
// newest state of the group is kept until two lines follow below it.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

enum class LineEnd {
  kNewline,  // A newline, or the line was overwritten after it had been shown.
  kTooLong,  // It was split because of its length; the rest follows as another piece.
};

struct LinePiece {
  std::string_view text;  // Without the newline; valid until the next call.
  LineEnd end = LineEnd::kNewline;
  bool continued = false;  // The line's beginning was returned by take_partial().
};

class LineSplitter {
 public:
  // Limit of a line in bytes, and so of the memory of a stream without newlines.
  static constexpr std::size_t kMaxLineBytes = 64u << 10;
  // Limit of a line of a stream without labels in a pipe or a file, which a program may read.
  static constexpr std::size_t kMaxPlainLineBytes = 1u << 20;
  // Limit of the rows of a group. Together they have at most the bytes of one line.
  static constexpr std::size_t kMaxRows = 8;
  // Sets the limit of a line.
  void set_max_line_bytes(std::size_t bytes) { max_line_bytes_ = bytes; }
  // folded: moves of the cursor make groups; else they are ordinary bytes.
  void set_groups(bool folded) { folds_groups_ = folded; }

  // Returns the next piece and removes the bytes that were read from `bytes`. Returns nullopt once
  // all bytes were read; an unfinished line may be kept.
  std::optional<LinePiece> next(std::string_view& bytes);

  // True if there is a group, or an unfinished line with bytes that take_partial() has not
  // returned.
  bool has_partial() const { return !partial_.empty() || !rows_.empty(); }
  // True if the unfinished line is being overwritten: show its state() instead of taking it.
  bool is_update() const { return update_ || return_pending_ || !rows_.empty(); }
  // The unfinished line, without bytes that take_partial() has returned.
  std::string_view partial() const { return partial_; }
  // Returns the state of an overwritten line, or the rows of a group from the top, without blank
  // ones.
  std::vector<std::string_view> state() const;
  // Like state(), but returns only the rows of a group that have changed since the last call. The
  // caller shows these rows permanently, so next() does not return them unless they change again.
  std::vector<std::string_view> take_new_state();
  // Returns the unfinished line. Later bytes of it are returned as `continued`.
  std::string take_partial();
  // Call when the stream has ended, until it returns nothing: returns the rows of a group one by
  // one, then a last line without a newline.
  std::optional<LinePiece> finish();

 private:
  struct Row {
    std::string text = {};
    std::string last_taken = {};  // Its text when take_new_state() returned it.
  };
  // A line to be returned by next().
  struct Ready {
    std::string text;
    LineEnd end;
  };
  std::optional<LinePiece> absorb(std::string_view& bytes);
  std::optional<LinePiece> step_back();
  LinePiece give(LineEnd end);
  std::optional<LinePiece> give_ready();
  void move_up();
  void absorb_row(std::string_view& bytes);
  void end_row();
  void write_row(std::string_view& bytes);
  void release_rows(std::size_t count);
  void end_group();

  std::size_t max_line_bytes_ = kMaxLineBytes;
  std::string partial_;
  std::string given_;            // Backs the view of the last piece.
  std::size_t taken_bytes_ = 0;  // Bytes of this line that take_partial() has returned.
  bool update_ = false;          // The line was overwritten.
  // The last byte was '\r', and the next one decides what it means; or the cursor has moved to this
  // row of a group. In both cases, text that follows replaces the line or row.
  bool return_pending_ = false;
  bool folds_groups_ = false;
  // A group of at least two rows. Empty: the unfinished line is in partial_.
  std::vector<Row> rows_;
  std::size_t row_ = 0;      // The row of the cursor.
  bool is_written_ = false;  // The row was written since the cursor arrived in it.
  int lines_below_ = 0;      // Lines that ended below the group since the cursor last moved up.
  std::deque<Ready> ready_;  // Returned before more bytes are read; at most kMaxRows + 1.
};

}  // namespace ivy
