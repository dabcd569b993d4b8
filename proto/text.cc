#include "proto/text.h"

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

}  // namespace ivy
