// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/core_list.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// Moves the number at the start of `text` to `number`. Returns false if there is none, or if it is
// larger than kMaxProcessorNumber.
bool take_number(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMaxProcessorNumber) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

CoreList parse_core_list(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t\n") + 1);
  CoreList cores;
  while (!text.empty()) {
    int first = 0;
    if (!take_number(text, first)) return {};
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!take_number(text, last) || last < first) return {};
    }
    for (int processor = first; processor <= last; ++processor) cores.push_back(processor);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return {};
    text.remove_prefix(1);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

std::string core_list_text(const CoreList& cores) { return folded_numbers(cores); }

CoreList common_cores(const CoreList& one, const CoreList& other) {
  CoreList common;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                        std::back_inserter(common));
  return common;
}

CoreList joined_cores(const CoreList& one, const CoreList& other) {
  CoreList all;
  std::set_union(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(all));
  return all;
}

}  // namespace ivy
