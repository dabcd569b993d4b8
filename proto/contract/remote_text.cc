#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

constexpr char kHex[] = "0123456789ABCDEF";

void append_hex(std::string& out, char byte) {
  out += "\\x";
  out += kHex[static_cast<unsigned char>(byte) >> 4];
  out += kHex[static_cast<unsigned char>(byte) & 0xf];
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Returns the length of the character that begins here; 1 for a byte that begins no character.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t length = lead >= 0xf0 && lead < 0xf5   ? 4
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xc2 && lead < 0xe0 ? 2
                                                           : 1;
  if (length > text.size()) return 1;
  for (std::size_t i = 1; i < length; ++i)
    if (!is_continuation(text[i])) return 1;
  return length;
}

bool is_control(std::string_view character) {
  const auto byte = static_cast<unsigned char>(character.back());
  if (character.size() == 1)
    return (byte < 0x20 && byte != '\n') || byte == 0x7f || (byte >= 0x80 && byte < 0xa0);
  // The C1 controls in UTF-8: some terminals obey them as they obey ESC.
  return character.size() == 2 && character.front() == '\xc2' && byte < 0xa0;
}

}  // namespace

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view character = text.substr(0, utf8_length(text));
    if (!is_control(character))
      out += character;
    else
      for (const char byte : character) append_hex(out, byte);
    text.remove_prefix(character.size());
  }
  return out;
}

std::string RemoteText::line() const {
  std::string out = lines();
  for (std::size_t at = out.find('\n'); at != std::string::npos; at = out.find('\n', at))
    out.replace(at, 1, "\\x0A");
  return out;
}

}  // namespace ivy
