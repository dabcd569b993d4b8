// Bytes of one stream to lines. Pure; thread: any.
//
// A line ends with a newline, or where it is longer than the longest allowed. "\r\n" ends a line
// like
// "\n". A lone '\r' goes back to the start of the line: what stood there is replaced by what
// follows, so only the newest state of a progress bar is kept.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ivy {

enum class LineEnd {
  kNewline,  // The stream had a newline here (or the line was overwritten after it had been shown).
  kTooLong,  // Cut by us: the line goes on.
};

struct LinePiece {
  std::string_view text;  // Without its end; valid until the next call.
  LineEnd end = LineEnd::kNewline;
  bool continued = false;  // The beginning of this line was given out by take_partial().
};

class LineSplitter {
 public:
  // Longest line in bytes: bounds what one silent stream can hold in memory.
  static constexpr std::size_t kMaxLineBytes = 64u << 10;
  // Without labels, in a pipe or a file that a program may read.
  static constexpr std::size_t kMaxPlainLineBytes = 1u << 20;
  void set_longest(std::size_t bytes) { longest_ = bytes; }

  // The next piece; removes what it has read from `bytes`. Nothing: all bytes are read, and an
  // unfinished line may be kept.
  std::optional<LinePiece> next(std::string_view& bytes);

  // There is an unfinished line that has not been shown.
  bool has_partial() const { return !partial_.empty(); }
  // The unfinished line is overwritten again and again: show its state, do not take it.
  bool is_update() const { return update_ || return_pending_; }
  std::string_view partial() const { return partial_; }
  // Gives the unfinished line out; what follows on it comes as `continued`.
  std::string take_partial();
  // The stream has ended: the last line, if it had no newline.
  std::optional<LinePiece> finish();

 private:
  std::optional<LinePiece> absorb(std::string_view& bytes);
  std::optional<LinePiece> go_back();
  LinePiece give(LineEnd end);

  std::size_t longest_ = kMaxLineBytes;
  std::string partial_;
  std::string given_;      // Backs the view of the last piece.
  std::size_t shown_ = 0;  // Bytes of this line that take_partial() has given out.
  bool update_ = false;
  bool return_pending_ = false;  // The last byte was '\r'; the next one decides what it meant.
};

}  // namespace ivy
