// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/remote_text.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr char kHex[] = "0123456789ABCDEF";

void append_hex(std::string& out, char byte) {
  out += "\\x";
  out += kHex[static_cast<unsigned char>(byte) >> 4];
  out += kHex[static_cast<unsigned char>(byte) & 0xf];
}

}  // namespace

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    // A byte that does not start a character is treated as a character.
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, utf8_length(text)));
    if (character == "\n" || !is_control(character))
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
