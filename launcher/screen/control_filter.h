// SPDX-License-Identifier: Apache-2.0
// Removes control sequences by which a worker could command the terminal that shows its output.
// Pure. Not thread-safe.
//
// Control strings (OSC, DCS, APC, PM, SOS: window titles, clipboard, hyperlinks, device commands)
// are removed with their content. So is ENQ, to which a terminal replies as if the user had typed
// the reply. State is kept across chunks and forgotten at each newline, so an unfinished string
// costs at most the rest of its line.
#pragma once

#include <string>
#include <string_view>

namespace ivy {

enum class ControlPolicy {
  kNoStrings,  // Only one program prints, so it may move the cursor; control strings are removed.
  // Labelled lines of several ranks: of all sequences, only colours and other attributes (SGR)
  // remain. Backspaces are removed as well, because they would overwrite the label.
  kColoursOnly,
  // Like kColoursOnly, but moves of the cursor to a line above remain, for LineSplitter.
  kColoursAndUp,
  // Labelled lines in a pipe or a file: everything but sequences remains; of sequences, colours and
  // moves to a line above.
  kPiped,
};

class ControlFilter {
 public:
  explicit ControlFilter(ControlPolicy policy) : policy_(policy) {}
  // Returns the bytes that may be shown. The view is valid until the next call, and as long as
  // `bytes` is.
  std::string_view apply(std::string_view bytes);

 private:
  // A C1 control has three forms: ESC and a letter; in UTF-8, C2 and a byte from 80 to 9F; and, for
  // a terminal in 8-bit mode, such a byte outside of any UTF-8 character.
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
  // Limit of an escape sequence; colour sequences are shorter.
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
  // Returns true if apply() would not change these bytes.
  bool all_plain(std::string_view bytes);

  ControlPolicy policy_;
  State state_ = State::kText;
  int continuations_ = 0;  // Bytes that the current UTF-8 character still lacks.
  std::string sequence_;   // The current escape sequence.
  std::string kept_;       // Backs the returned view, if anything was removed.
};

}  // namespace ivy
