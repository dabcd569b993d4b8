#include "launcher/screen/error_file.h"

#include <cctype>
#include <cstdint>

namespace ivy {
namespace {

// Deeper values are skipped unread; the format needs three levels.
constexpr int kMaxDepth = 16;

void append_utf8(std::string& out, std::uint32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xc0 | (point >> 6));
    out += static_cast<char>(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    out += static_cast<char>(0xe0 | (point >> 12));
    out += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (point & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (point >> 18));
    out += static_cast<char>(0x80 | ((point >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (point & 0x3f));
  }
}

// Walks over JSON and keeps the strings named "message" and "py_callstack" that it meets first.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Reads one value; `key` is the name it has in its object. False: the text ends or is no JSON
  // here.
  bool value(const std::string& key, int depth) {
    skip_blanks();
    if (at_end() || depth > kMaxDepth) return false;
    const char first = text_[at_];
    if (first == '{' || first == '[') return container(key, depth);
    if (first == '"') return string_value(key);
    while (!at_end() && text_[at_] != ',' && text_[at_] != '}' && text_[at_] != ']') ++at_;
    return true;
  }

  ErrorFile found;

 private:
  bool at_end() const { return at_ >= text_.size(); }
  void skip_blanks() {
    while (!at_end() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char wanted) {
    skip_blanks();
    if (at_end() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool container(const std::string& key, int depth) {
    const bool is_object = text_[at_] == '{';
    const char close = is_object ? '}' : ']';
    ++at_;
    if (take(close)) return true;
    do {
      std::string name = key;
      if (is_object) {
        skip_blanks();
        name.clear();
        if (!string(name) || !take(':')) return false;
      }
      if (!value(name, depth + 1)) return false;
    } while (take(','));
    return take(close);
  }

  bool string_value(const std::string& key) {
    std::string text;
    const bool whole = string(text);
    // A cut string is still the best there is.
    if (key == "message" && found.message.empty()) found.message = text;
    if (key == "py_callstack" && found.callstack.empty()) found.callstack = text;
    return whole;
  }

  bool string(std::string& out) {
    if (at_end() || text_[at_] != '"') return false;
    ++at_;
    while (!at_end()) {
      const char byte = text_[at_++];
      if (byte == '"') return true;
      if (byte != '\\') {
        out += byte;
      } else if (!at_end()) {
        escape(out);
      }
    }
    return false;
  }

  void escape(std::string& out) {
    const char letter = text_[at_++];
    switch (letter) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'u':
        append_utf8(out, unicode());
        break;
      default:
        out += letter;
    }
  }

  std::uint32_t four_digits() {
    std::uint32_t number = 0;
    for (int i = 0; i < 4 && !at_end(); ++i) {
      const char digit = text_[at_];
      if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) break;
      const int nibble = digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
      number = number * 16 + static_cast<std::uint32_t>(nibble);
      ++at_;
    }
    return number;
  }

  std::uint32_t unicode() {
    constexpr std::uint32_t kReplacement = 0xfffd;
    const std::uint32_t high = four_digits();
    if (high < 0xd800 || high > 0xdfff) return high;
    const bool has_low = text_.substr(at_).starts_with("\\u");
    if (high > 0xdbff || !has_low) return kReplacement;
    at_ += 2;
    const std::uint32_t low = four_digits();
    if (low < 0xdc00 || low > 0xdfff) return kReplacement;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

ErrorFile read_error_file(std::string_view content) {
  Reader reader(content);
  reader.value("", 0);
  if (reader.found.message.empty() && reader.found.callstack.empty())
    reader.found.message = std::string(content);
  return reader.found;
}

}  // namespace ivy
