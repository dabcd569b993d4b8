// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/control_filter.h"

namespace ivy {
namespace {

constexpr char kEscapeByte = '\x1b';
constexpr char kBell = '\a';
constexpr char kCancel = '\x18';
constexpr char kSubstitute = '\x1a';
constexpr char kC2Byte = '\xc2';
constexpr char kEnquiry = '\x05';

// Returns how many continuation bytes follow this byte in UTF-8.
int continuations_of(char byte) {
  const auto lead = static_cast<unsigned char>(byte);
  return lead >= 0xf0 && lead < 0xf5   ? 3
         : lead >= 0xe0 && lead < 0xf0 ? 2
         : lead >= 0xc2 && lead < 0xe0 ? 1
                                       : 0;
}

bool is_c1(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return code >= 0x80 && code <= 0x9f;
}

// ESC P, X, ], ^ and _ start DCS, SOS, OSC, PM and APC; the C1 bytes are the same plus 0x40.
bool starts_string(char letter) {
  return letter == 'P' || letter == 'X' || letter == ']' || letter == '^' || letter == '_';
}

}  // namespace

// True for bytes that are shown without change.
bool ControlFilter::is_plain(char byte) const {
  if (policy_ == ControlPolicy::kPiped) return byte != kEscapeByte;
  if (byte == kEscapeByte || byte == kC2Byte || byte == kEnquiry) return false;
  if (policy_ == ControlPolicy::kNoStrings) return true;
  // Vertical tab, form feed and the two character set shifts change how later text is printed.
  return byte != '\b' && byte != '\v' && byte != '\f' && byte != '\x0e' && byte != '\x0f';
}

// Tracks UTF-8 characters, to distinguish C1 controls from continuation bytes between 80 and 9F.
bool ControlFilter::is_in_character(char byte) {
  if (continuations_ > 0 && (static_cast<unsigned char>(byte) & 0xc0) == 0x80) {
    --continuations_;
    return true;
  }
  continuations_ = continuations_of(byte);
  return continuations_ > 0;
}

bool ControlFilter::all_plain(std::string_view bytes) {
  if (state_ != State::kText) return false;
  if (policy_ == ControlPolicy::kPiped) return bytes.find(kEscapeByte) == std::string_view::npos;
  const int before = continuations_;
  for (const char byte : bytes) {
    // Most text is ASCII, so this is checked first.
    const bool is_ascii = static_cast<unsigned char>(byte) < 0x80 && continuations_ == 0;
    if (is_plain(byte) && (is_ascii || is_in_character(byte) || !is_c1(byte))) continue;
    continuations_ = before;
    return false;
  }
  return true;
}

std::string_view ControlFilter::apply(std::string_view bytes) {
  if (all_plain(bytes)) return bytes;
  kept_.clear();
  for (const char byte : bytes) {
    if (byte == '\n') {
      if (state_ == State::kC2) kept_ += kC2Byte;
      state_ = State::kText;
      continuations_ = 0;
      sequence_.clear();
      kept_ += byte;
      continue;
    }
    switch (state_) {
      case State::kText:
        on_text(byte);
        break;
      case State::kEscape:
      case State::kEscapeMiddle:
        on_escape(byte);
        break;
      case State::kSequence:
        on_sequence(byte);
        break;
      case State::kString:
      case State::kStringEscape:
      case State::kStringC2:
        on_string(byte);
        break;
      case State::kC2:
        on_c2(byte);
        break;
    }
  }
  return kept_;
}

void ControlFilter::begin_escape() {
  state_ = State::kEscape;
  sequence_.assign(1, kEscapeByte);
  continuations_ = 0;
}

void ControlFilter::on_text(char byte) {
  if (byte == kEscapeByte) {
    begin_escape();
  } else if (policy_ == ControlPolicy::kPiped) {
    kept_ += byte;
  } else if (byte == kC2Byte) {
    state_ = State::kC2;
    continuations_ = 0;
  } else if (is_plain(byte) && (is_in_character(byte) || !is_c1(byte) || !on_c1(byte))) {
    kept_ += byte;
  }
}

void ControlFilter::on_escape(char byte) {
  const bool is_piped = policy_ == ControlPolicy::kPiped;
  if (byte == kEscapeByte) {
    if (is_piped) kept_ += sequence_;
    return begin_escape();
  }
  sequence_ += byte;
  const bool first = state_ == State::kEscape;
  if (is_piped && byte != '[') {
    finish_sequence(true);
  } else if (first && starts_string(byte)) {
    state_ = State::kString;
    sequence_.clear();
  } else if (first && byte == '[') {
    state_ = State::kSequence;
  } else if (byte >= 0x20 && byte <= 0x2f && sequence_.size() < kMaxSequenceBytes) {
    state_ = State::kEscapeMiddle;
  } else {
    finish_sequence(policy_ == ControlPolicy::kNoStrings);
  }
}

void ControlFilter::on_sequence(char byte) {
  if (byte == kEscapeByte) return begin_escape();
  sequence_ += byte;
  const bool is_final = byte >= 0x40 && byte <= 0x7e;
  const bool is_inner = byte >= 0x20 && byte <= 0x3f;
  if (is_final) {
    // Sequences such as "ESC [ > 4 m" set keyboard modes, not colours.
    const std::string_view numbers = std::string_view(sequence_).substr(2, sequence_.size() - 3);
    const bool is_colour =
        byte == 'm' && numbers.find_first_not_of("0123456789;:") == std::string_view::npos;
    // LineSplitter understands moves with one number or none.
    const bool is_up =
        (policy_ == ControlPolicy::kColoursAndUp || policy_ == ControlPolicy::kPiped) &&
        (byte == 'A' || byte == 'F') &&
        numbers.find_first_not_of("0123456789") == std::string_view::npos;
    finish_sequence(is_colour || is_up || policy_ == ControlPolicy::kNoStrings);
  } else if (!is_inner || sequence_.size() >= kMaxSequenceBytes) {
    finish_sequence(false);
  }
}

void ControlFilter::on_string(char byte) {
  if (state_ == State::kStringEscape && byte != '\\') {
    // An escape ends the string, even if it is not its terminator.
    begin_escape();
    return on_escape(byte);
  }
  const bool ended = state_ == State::kStringEscape || byte == kBell || byte == kCancel ||
                     byte == kSubstitute || (!is_in_character(byte) && byte == '\x9c') ||
                     (state_ == State::kStringC2 && byte == '\x9c');
  if (ended) {
    state_ = State::kText;
    continuations_ = 0;
  } else if (byte == kEscapeByte) {
    state_ = State::kStringEscape;
  } else {
    state_ = byte == kC2Byte ? State::kStringC2 : State::kString;
  }
}

void ControlFilter::on_c2(char byte) {
  state_ = State::kText;
  if (is_c1(byte) && on_c1(byte)) return;
  kept_ += kC2Byte;
  const bool belongs_to_it = (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
  if (belongs_to_it)
    kept_ += byte;
  else
    on_text(byte);
}

// Handles a C1 control. Returns true if it must not be shown.
bool ControlFilter::on_c1(char byte) {
  const char letter = static_cast<char>(static_cast<unsigned char>(byte) - 0x40);
  if (starts_string(letter)) {
    state_ = State::kString;
  } else if (letter == '[') {
    state_ = State::kSequence;
    sequence_ = "\x1b[";
  }
  return state_ != State::kText || policy_ != ControlPolicy::kNoStrings;
}

void ControlFilter::finish_sequence(bool keep) {
  if (keep) kept_ += sequence_;
  sequence_.clear();
  state_ = State::kText;
}

}  // namespace ivy
