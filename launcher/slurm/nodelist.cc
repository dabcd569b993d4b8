// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/nodelist.h"

#include <algorithm>
#include <optional>

#include "proto/contract/host_ranges.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

Error error_at(const RangeFault& fault) {
  return Error{Code::kInvalidArgument,
               "column " + std::to_string(fault.column) + ": " + fault.what};
}

Error error_at(const TextPiece& piece, const std::string& what) {
  return error_at(RangeFault{piece.column, "\"" + std::string(piece.text) + "\" " + what});
}

Result<void> add_item(const TextPiece& item, std::vector<std::string>& names) {
  if (item.text.empty()) return error_at(item, "is not a name: there is an extra comma");
  const std::size_t first = names.size();
  if (const auto fault = expand_host_ranges(item, BracketOrder::kAsSlurm, names))
    return error_at(*fault);
  if (item.text.find(']') != std::string_view::npos && !item.text.ends_with(']'))
    return error_at(item, "has text after its last bracket");
  if (!std::all_of(names.begin() + static_cast<std::ptrdiff_t>(first), names.end(),
                   is_safe_host_name))
    return error_at(item, "is not a host name");
  return {};
}

std::optional<int> to_count(std::string_view text) {
  const std::optional<int> count = to_number<int>(text);
  return count.value_or(-1) < 0 ? std::nullopt : count;
}

Error too_long() {
  return Error{Code::kInvalidArgument,
               "longer than " + std::to_string(kMaxHostListBytes) + " characters"};
}

Result<void> add_count(const TextPiece& piece, std::vector<int>& counts) {
  std::string_view text = piece.text;
  std::optional<int> times = 1;
  const std::size_t open = text.find("(x");
  if (open != std::string_view::npos && text.ends_with(')')) {
    times = to_count(text.substr(open + 2, text.size() - open - 3));
    text = text.substr(0, open);
  }
  const std::optional<int> count = to_count(text);
  if (!count || times.value_or(0) == 0) return error_at(piece, "is not a count such as 4 or 4(x2)");
  if (counts.size() + static_cast<std::size_t>(*times) > kMaxHosts)
    return error_at(piece, "expands to more than " + std::to_string(kMaxHosts) + " hosts");
  counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  return {};
}

}  // namespace

Result<std::vector<std::string>> parse_nodelist(std::string_view text) {
  if (text.size() > kMaxHostListBytes) return too_long();
  if (text.empty()) return Error{Code::kInvalidArgument, "the list is empty"};
  std::vector<std::string> names;
  for (const TextPiece& item : cut_at_commas(TextPiece{text}, true))
    IVY_CHECK(add_item(item, names));
  return names;
}

Result<std::vector<int>> parse_node_counts(std::string_view text) {
  if (text.size() > kMaxHostListBytes) return too_long();
  std::vector<int> counts;
  for (const TextPiece& piece : cut_at_commas(TextPiece{text}, false))
    IVY_CHECK(add_count(piece, counts));
  return counts;
}

std::string nodelist_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t first = at;
    const std::string_view prefix = cut_at_number(names[first]).prefix;
    std::vector<std::string_view> numbers;
    for (; at < names.size(); ++at) {
      const NumberedName name = cut_at_number(names[at]);
      if (name.digits.empty() || !name.suffix.empty() || name.prefix != prefix) break;
      numbers.push_back(name.digits);
    }
    text += text.empty() ? "" : ",";
    if (numbers.size() > 1) {
      text += std::string(prefix) + "[" + range_text(numbers) + "]";
    } else {
      text += names[first];
      at = first + 1;
    }
  }
  return text;
}

std::string node_counts_text(const std::vector<int>& counts) {
  std::string text;
  for (std::size_t at = 0; at < counts.size();) {
    std::size_t times = 1;
    while (at + times < counts.size() && counts[at + times] == counts[at]) ++times;
    text += (text.empty() ? "" : ",") + std::to_string(counts[at]);
    if (times > 1) text += "(x" + std::to_string(times) + ")";
    at += times;
  }
  return text;
}

}  // namespace ivy
