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

std::string table_cell(const RemoteText& text, std::size_t columns) {
  std::string clean = text.lines();
  std::replace(clean.begin(), clean.end(), '\n', ' ');
  if (clean.size() <= columns) return clean;
  std::size_t cut = columns - 3;
  while (cut > 0 && (static_cast<unsigned char>(clean[cut]) & 0xc0) == 0x80) --cut;
  return clean.substr(0, cut) + "...";
}

std::optional<std::size_t> shown_columns() {
  if (isatty(STDOUT_FILENO) == 0) return std::nullopt;
  return static_cast<std::size_t>(std::max(terminal_columns(STDOUT_FILENO), 1));
}

void drop_columns(std::vector<TextRow>& lines, std::span<const std::string_view> dispensable,
                  std::size_t columns) {
  constexpr std::size_t kLeastOfLast = 16;
  const auto width = [&] {
    std::size_t sum = 0;
    for (std::size_t cell = 0; cell < lines.front().size(); ++cell) {
      std::size_t widest = 0;
      for (const TextRow& line : lines) widest = std::max(widest, line[cell].size());
      const bool is_last = cell + 1 == lines.front().size();
      sum += is_last ? std::min(widest, kLeastOfLast) : widest + 2;
    }
    return sum;
  };
  for (const std::string_view name : dispensable) {
    if (width() <= columns) return;
    const TextRow& names = lines.front();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) continue;
    const auto cell = found - names.begin();
    for (TextRow& line : lines) line.erase(line.begin() + cell);
  }
}

void print_list(const TextRow& header, const std::vector<ListRow>& rows, bool as_json) {
  if (as_json) {
    std::string text;
    for (const ListRow& row : rows) text += (text.empty() ? "\n  " : ",\n  ") + json_line(row.json);
    std::printf("[%s%s]\n", text.c_str(), rows.empty() ? "" : "\n");
  } else if (!rows.empty()) {
    std::vector<TextRow> lines{header};
    for (const ListRow& row : rows) lines.push_back(row.cells);
    std::fputs(text_columns(lines, "").c_str(), stdout);
  }
}

}  // namespace ivy
