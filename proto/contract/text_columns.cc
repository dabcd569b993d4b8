// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/text_columns.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "proto/contract/remote_text.h"

namespace ivy {

std::string text_columns(const std::vector<TextRow>& given, const std::string& indent) {
  std::vector<TextRow> rows = given;
  for (TextRow& row : rows)
    for (std::string& cell : row) cell = RemoteText(std::move(cell)).line();
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const TextRow& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const TextRow& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] + 2 - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string mebibytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kMebibyte = 1u << 20;
  const double mebibytes = static_cast<double>(bytes) / kMebibyte;
  const bool is_large = mebibytes >= 1024;
  char text[32];
  std::snprintf(text, sizeof text, is_large ? "%.1f GiB" : "%.0f MiB",
                is_large ? mebibytes / 1024 : mebibytes);
  return text;
}

}  // namespace ivy
