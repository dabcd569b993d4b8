// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/json_text.h"

#include <cstdio>

namespace ivy {
namespace {

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : lead >= 0xe0 && lead < 0xf0 ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t j = 1; j < length; ++j)
      if ((static_cast<unsigned char>(text[i + j]) & 0xc0) != 0x80) return false;
    i += length;
  }
  return true;
}

// Escapes the control characters of a JSON text that a terminal might obey.
std::string without_controls(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // Terminals treat a C1 control in UTF-8 (C2 and a byte below A0) like ESC.
    const bool begins_c1 = byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (!begins_c1 && byte != 0x7f) {
      out += text[i];
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x",
                  begins_c1 ? static_cast<unsigned char>(text[++i]) : byte);
    out += escaped;
  }
  return out;
}

}  // namespace

boost::json::string json_text(const std::string& text) {
  if (is_utf8(text)) return boost::json::string(text);
  boost::json::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) out += static_cast<char>(0xc0 | (byte >> 6));
    out += byte < 0x80 ? c : static_cast<char>(0x80 | (byte & 0x3f));
  }
  return out;
}

std::string json_line(const boost::json::value& value) {
  return without_controls(boost::json::serialize(value));
}

}  // namespace ivy
