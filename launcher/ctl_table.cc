#include "launcher/ctl_table.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "launcher/diagnostic.h"

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

}  // namespace

std::string elapsed_since(std::int64_t unix_ms) {
  using namespace std::chrono;
  const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  const long long seconds = std::max<std::int64_t>(now - unix_ms, 0) / 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                seconds % 60);
  return text;
}

std::string table_cell(const RemoteText& text, std::size_t columns) {
  std::string clean = text.lines();
  std::replace(clean.begin(), clean.end(), '\n', ' ');
  if (clean.size() <= columns) return clean;
  return clean.substr(0, columns - 3) + "...";
}

void print_table(std::vector<std::vector<std::string>> lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (i + 1 < line.size()) line[i].resize(widths[i] + 2, ' ');
      text += line[i];
    }
    std::printf("%s\n", text.c_str());
  }
}

std::string json_text(const std::string& text) {
  const bool utf8 = is_utf8(text);
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    // A C1 control in UTF-8 is as good as ESC.
    const bool begins_c1 = utf8 && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (begins_c1) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(text[++i]));
      out += escaped;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !utf8)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace ivy
