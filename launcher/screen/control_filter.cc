#include "launcher/screen/control_filter.h"

#include <algorithm>

namespace ivy {
namespace {

constexpr char kEscapeByte = '\x1b';
constexpr char kBell = '\a';
constexpr char kCancel = '\x18';
constexpr char kSubstitute = '\x1a';
constexpr char kC2Byte = '\xc2';

// ESC P, X, ], ^ and _ start DCS, SOS, OSC, PM and APC; the C1 bytes are the same plus 0x40.
bool starts_string(char letter) {
  return letter == 'P' || letter == 'X' || letter == ']' || letter == '^' || letter == '_';
}

}  // namespace

// Bytes that reach the screen as they are.
bool ControlFilter::is_plain(char byte) const {
  if (byte == kEscapeByte || byte == kC2Byte) return false;
  if (policy_ == ControlPolicy::kNoStrings) return true;
  // Vertical tab, form feed and the two shifts of the character set change what others print.
  return byte != '\v' && byte != '\f' && byte != '\x0e' && byte != '\x0f';
}

std::string_view ControlFilter::apply(std::string_view bytes) {
  const bool all_plain =
      state_ == State::kText &&
      std::all_of(bytes.begin(), bytes.end(), [this](char byte) { return is_plain(byte); });
  if (all_plain) return bytes;
  kept_.clear();
  for (const char byte : bytes) {
    if (byte == '\n') {
      if (state_ == State::kC2) kept_ += kC2Byte;
      state_ = State::kText;
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

void ControlFilter::on_text(char byte) {
  if (byte == kEscapeByte) {
    state_ = State::kEscape;
    sequence_.assign(1, byte);
  } else if (byte == kC2Byte) {
    state_ = State::kC2;
  } else if (is_plain(byte)) {
    kept_ += byte;
  }
}

void ControlFilter::on_escape(char byte) {
  if (byte == kEscapeByte) {
    sequence_.assign(1, byte);
    state_ = State::kEscape;
    return;
  }
  sequence_ += byte;
  const bool first = state_ == State::kEscape;
  if (first && starts_string(byte)) {
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
  if (byte == kEscapeByte) {
    sequence_.assign(1, byte);
    state_ = State::kEscape;
    return;
  }
  sequence_ += byte;
  const bool is_final = byte >= 0x40 && byte <= 0x7e;
  const bool is_inner = byte >= 0x20 && byte <= 0x3f;
  if (is_final) {
    // "ESC [ > 4 m" and the like set keyboard modes, not colours.
    const bool is_colour =
        byte == 'm' && std::all_of(sequence_.begin() + 2, sequence_.end() - 1, [](char c) {
          return (c >= '0' && c <= '9') || c == ';' || c == ':';
        });
    finish_sequence(is_colour || policy_ == ControlPolicy::kNoStrings);
  } else if (!is_inner || sequence_.size() >= kMaxSequenceBytes) {
    finish_sequence(false);
  }
}

void ControlFilter::on_string(char byte) {
  if (state_ == State::kStringEscape && byte != '\\') {
    // An escape ends the string even when something else follows.
    state_ = State::kEscape;
    sequence_.assign(1, kEscapeByte);
    on_escape(byte);
    return;
  }
  const bool ended = state_ == State::kStringEscape || byte == kBell || byte == kCancel ||
                     byte == kSubstitute || (state_ == State::kStringC2 && byte == '\x9c');
  if (ended) {
    state_ = State::kText;
  } else if (byte == kEscapeByte) {
    state_ = State::kStringEscape;
  } else {
    state_ = byte == kC2Byte ? State::kStringC2 : State::kString;
  }
}

void ControlFilter::on_c2(char byte) {
  state_ = State::kText;
  const auto code = static_cast<unsigned char>(byte);
  const bool is_c1 = code >= 0x80 && code <= 0x9f;
  const char letter = static_cast<char>(code - 0x40);
  if (is_c1 && starts_string(letter)) {
    state_ = State::kString;
  } else if (is_c1 && letter == '[') {
    state_ = State::kSequence;
    sequence_ = "\x1b[";
  } else if (!is_c1 || policy_ == ControlPolicy::kNoStrings) {
    kept_ += kC2Byte;
    on_text(byte);
  }
}

void ControlFilter::finish_sequence(bool keep) {
  if (keep) kept_ += sequence_;
  sequence_.clear();
  state_ = State::kText;
}

}  // namespace ivy
