// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/event_line.h"

#include <cstddef>
#include <optional>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// The text of MPI_Abort is chosen by the program and may have any length.
constexpr std::size_t kLongestText = 2000;

std::string escaped_byte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\n') return "\\n";
  if (c == '\\') return "\\\\";
  if (byte >= 0x20 && byte != 0x7f) return std::string(1, c);
  return "\\x" + hexadecimal({&c, 1});
}

}  // namespace

std::string joined_line(std::uint32_t rank) { return "joined " + std::to_string(rank) + "\n"; }
std::string left_line(std::uint32_t rank) { return "left " + std::to_string(rank) + "\n"; }
std::string vanished_line(std::uint32_t rank) { return "vanished " + std::to_string(rank) + "\n"; }
std::string error_line(std::string_view text) { return "error " + escaped_text(text) + "\n"; }

std::string abort_line(std::uint32_t rank, int code, std::string_view text) {
  std::string line = "abort " + std::to_string(rank) + " " + std::to_string(code);
  if (!text.empty()) line += " " + escaped_text(text);
  return line + "\n";
}

std::string escaped_text(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  std::string line;
  for (const char c : text) {
    if (line.size() >= kLongestText) return line + "...";
    line += escaped_byte(c);
  }
  return line;
}

std::int64_t requested_rank(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  if (!line.starts_with(kRank)) return -1;
  const auto rank = to_number<std::uint32_t>(line.substr(kRank.size()));
  return rank ? std::int64_t{*rank} : -1;
}

std::string answer_text(const std::vector<std::string>& variables) {
  std::string text;
  for (const std::string& variable : variables) text.append(variable).push_back('\0');
  return text;
}

}  // namespace ivy
