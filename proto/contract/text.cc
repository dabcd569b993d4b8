#include "proto/contract/text.h"

#include <algorithm>

namespace ivy {

std::string help_entry(std::string typed, std::string_view text, std::size_t column) {
  constexpr std::size_t kWidth = 98;
  std::string out;
  std::string line = std::move(typed);
  if (line.size() + 2 > column) {
    out = line + "\n";
    line.clear();
  }
  line.resize(column, ' ');
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (line.size() + end + 1 > kWidth) {
      out += line + "\n";
      line.assign(column, ' ');
    }
    if (line.size() > column) line += " ";
    line += text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + line + "\n";
}

std::string quoted_arguments(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  std::string out;
  for (const std::string& argument : arguments) {
    if (!out.empty()) out += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      out += argument;
      continue;
    }
    out += '\'';
    for (const char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

}  // namespace ivy
