// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/probe_lines.h"

#include <algorithm>

namespace ivy {

std::string probe_field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

void add_probe_line(std::string& text, std::string_view keyword, std::vector<std::string> fields) {
  text += kProbeMark;
  text += keyword;
  for (std::string& field : fields) text += "\t" + probe_field(std::move(field));
  text += "\n";
}

ProbeFields split_probe_line(std::string_view line) {
  ProbeFields fields;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find('\t', begin), line.size());
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

}  // namespace ivy
