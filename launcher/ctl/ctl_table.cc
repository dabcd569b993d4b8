#include "launcher/ctl/ctl_table.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "proto/contract/text.h"
#include "proto/os/clock.h"

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

// A JSON text in which no control character commands a terminal.
std::string without_controls(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // A C1 control in UTF-8 is as good as ESC.
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

std::string elapsed_since(std::int64_t unix_ms) {
  return clock_text(std::max<std::int64_t>(wall_ms() - unix_ms, 0) / 1000);
}

std::string table_cell(const RemoteText& text, std::size_t columns) {
  std::string clean = text.lines();
  std::replace(clean.begin(), clean.end(), '\n', ' ');
  if (clean.size() <= columns) return clean;
  return clean.substr(0, columns - 3) + "...";
}

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

void print_list(const TextRow& header, const std::vector<ListRow>& rows, bool as_json) {
  if (as_json) {
    std::string text;
    for (const ListRow& row : rows)
      text += (text.empty() ? "\n  " : ",\n  ") + boost::json::serialize(row.json);
    std::printf("[%s%s]\n", without_controls(text).c_str(), rows.empty() ? "" : "\n");
  } else if (!rows.empty()) {
    std::vector<TextRow> lines{header};
    for (const ListRow& row : rows) lines.push_back(row.cells);
    std::fputs(text_columns(lines, "").c_str(), stdout);
  }
}

}  // namespace ivy
