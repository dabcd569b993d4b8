// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "launcher/screen/terminal.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

// The last column is dispensable down to this width: the caller truncates it to fit the terminal.
constexpr std::size_t kMinLastColumnWidth = 16;
constexpr std::size_t kColumnGap = 2;  // As text_columns() separates columns.

std::size_t column_width(const std::vector<TextRow>& lines, std::size_t cell) {
  std::size_t widest = 0;
  for (const TextRow& line : lines) widest = std::max(widest, line[cell].size());
  return widest;
}

std::size_t table_width(const std::vector<TextRow>& lines) {
  const std::size_t last = lines.front().size() - 1;
  std::size_t width = std::min(column_width(lines, last), kMinLastColumnWidth);
  for (std::size_t cell = 0; cell < last; ++cell) width += column_width(lines, cell) + kColumnGap;
  return width;
}

}  // namespace

std::string elapsed_since(std::int64_t unix_ms) {
  return clock_text(std::max<std::int64_t>(wall_ms() - unix_ms, 0) / 1000);
}

std::string local_time_text(std::int64_t unix_ms) {
  const std::time_t then = unix_ms / 1000;
  const std::time_t now = wall_ms() / 1000;
  std::tm parts{};
  std::tm today{};
  localtime_r(&then, &parts);
  localtime_r(&now, &today);
  const bool is_today = parts.tm_year == today.tm_year && parts.tm_yday == today.tm_yday;
  char text[32];
  std::strftime(text, sizeof text, is_today ? "%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string table_cell(const RemoteText& text, std::size_t max_bytes) {
  constexpr std::string_view kEllipsis = "...";
  std::string clean = text.lines();
  std::replace(clean.begin(), clean.end(), '\n', ' ');
  if (clean.size() <= max_bytes) return clean;
  std::size_t cut = max_bytes - std::min(max_bytes, kEllipsis.size());
  // Cut before a whole UTF-8 character: its later bytes start with the bits 10.
  while (cut > 0 && (static_cast<unsigned char>(clean[cut]) & 0xc0) == 0x80) --cut;
  return clean.substr(0, cut) + std::string(kEllipsis.substr(0, max_bytes - cut));
}

std::optional<std::size_t> shown_columns() {
  if (isatty(STDOUT_FILENO) == 0) return std::nullopt;
  return static_cast<std::size_t>(std::max(terminal_columns(STDOUT_FILENO), 1));
}

void drop_columns(std::vector<TextRow>& lines, std::span<const std::string_view> dispensable,
                  std::size_t columns) {
  for (const std::string_view name : dispensable) {
    if (table_width(lines) <= columns) return;
    const TextRow& names = lines.front();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) continue;
    const auto cell = found - names.begin();
    for (TextRow& line : lines) line.erase(line.begin() + cell);
  }
}

void print_list(const TextRow& header, const std::vector<ListRow>& rows, bool as_json) {
  if (as_json) {
    // One row per line, so that line tools can be used as well as JSON parsers.
    std::vector<std::string> objects;
    for (const ListRow& row : rows) objects.push_back(json_line(row.json));
    const std::string list = rows.empty() ? "[]" : "[\n  " + joined(objects, ",\n  ") + "\n]";
    std::puts(list.c_str());
  } else if (!rows.empty()) {
    std::vector<TextRow> lines{header};
    for (const ListRow& row : rows) lines.push_back(row.cells);
    std::fputs(text_columns(lines, "").c_str(), stdout);
  }
}

}  // namespace ivy
