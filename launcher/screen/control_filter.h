// SPDX-License-Identifier: Apache-2.0
// Keeps workers from commanding the terminal that shows their output. Pure; thread: any.
//
// Control strings (OSC, DCS, APC, PM, SOS: window titles, clipboard, hyperlinks, device commands)
// are removed with their content, and so is ENQ, which makes a terminal type its answer into the
// shell. State is kept over chunk borders and forgotten at each newline, so that an unfinished
// string costs at most the rest of its line.
#pragma once

#include <string>
#include <string_view>

namespace ivy {

enum class ControlPolicy {
  kNoStrings,  // Only one program prints, so it may move the cursor.
  // Lines of several ranks: only colours and other attributes (SGR) are left. Backspaces are
  // removed as well, because they would overwrite the label.
  kColoursOnly,
  // The same, and moves of the cursor to a line above, which LineSplitter handles.
  kColoursAndUp,
  // Labelled lines in a pipe or a file: everything but control sequences, of which colours and
  // moves to a line above are left.
  kPiped,
};

class ControlFilter {
 public:
  explicit ControlFilter(ControlPolicy policy) : policy_(policy) {}
  // Returns the part of these bytes that may be shown; valid until the next call and as long as
  // `bytes`.
  std::string_view apply(std::string_view bytes);

 private:
  // A C1 control arrives as ESC and a letter, in UTF-8 as C2 and a byte from 80 to 9F, or for a
  // terminal in 8-bit mode as such a byte alone: one that belongs to no character of UTF-8.
  enum class State {
    kText,
    kEscape,
    kEscapeMiddle,
    kSequence,
    kString,
    kStringEscape,
    kStringC2,
    kC2
  };
  // Colour sequences are shorter than this.
  static constexpr std::size_t kMaxSequenceBytes = 128;

  void begin_escape();
  void on_text(char byte);
  void on_escape(char byte);
  void on_sequence(char byte);
  void on_string(char byte);
  void on_c2(char byte);
  bool on_c1(char byte);
  void finish_sequence(bool keep);
  bool is_plain(char byte) const;
  bool is_in_character(char byte);
  bool all_plain(std::string_view bytes);

  ControlPolicy policy_;
  State state_ = State::kText;
  int continuations_ = 0;  // Bytes that the character under way still lacks.
  std::string sequence_;   // The escape sequence under way.
  std::string kept_;
};

}  // namespace ivy
