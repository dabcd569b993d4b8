// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/flight_trim.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace ivy {
namespace {

constexpr std::string_view kEntries = "\"entries\":[";

// Returns the length of the object at the start of the text; 0 if it is incomplete.
std::size_t object_length(std::string_view text) {
  std::size_t depth = 0;
  bool is_in_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_in_text && c == '\\') ++at;
    if (c == '"') is_in_text = !is_in_text;
    if (is_in_text) continue;
    if (c == '{') ++depth;
    if (c == '}' && depth > 0 && --depth == 0) return at + 1;
    if (depth == 0) return 0;
  }
  return 0;
}

std::vector<std::string_view> objects_of(std::string_view list) {
  std::vector<std::string_view> objects;
  for (;;) {
    const std::size_t length = object_length(list);
    if (length == 0) return objects;
    objects.push_back(list.substr(0, length));
    list.remove_prefix(length);
    if (!list.starts_with(',')) return objects;
    list.remove_prefix(1);
  }
}

bool is_over(std::string_view entry) {
  return entry.find("\"retired\":true") != std::string_view::npos ||
         entry.find("\"state\":\"completed\"") != std::string_view::npos;
}

}  // namespace

std::string trimmed_flight(const std::string& record, std::size_t limit) {
  if (record.size() <= limit) return record;
  const std::size_t at = record.find(kEntries);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kEntries.size();
  std::vector<std::string_view> entries = objects_of(std::string_view(record).substr(begin));
  if (entries.empty()) return "";
  const std::size_t end =
      static_cast<std::size_t>(entries.back().data() - record.data()) + entries.back().size();
  std::size_t excess = record.size() - limit;
  std::string kept;
  for (const std::string_view entry : entries) {
    const bool is_dropped = excess > 0 && is_over(entry);
    if (is_dropped) excess -= std::min(excess, entry.size() + 1);
    if (!is_dropped) kept += (kept.empty() ? "" : ",") + std::string(entry);
  }
  if (excess > 0) return "";
  return record.substr(0, begin) + kept + record.substr(end);
}

}  // namespace ivy
