// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/host_ranges.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// 18 digits fit into 64 bits, and Slurm's own limit is not smaller.
constexpr std::size_t kMaxRangeDigits = 18;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<std::uint64_t> number_of(std::string_view digits) {
  if (digits.size() > kMaxRangeDigits) return std::nullopt;
  return to_number<std::uint64_t>(digits);
}

RangeFault fault(const TextPiece& piece, const std::string& what) {
  return RangeFault{piece.column, "\"" + std::string(piece.text) + "\" " + what};
}

RangeFault too_many(const TextPiece& piece) {
  return fault(piece, "expands to more than " + std::to_string(kMaxHosts) + " hosts");
}

using Texts = std::vector<std::string>;

// Appends the numbers of the range "lo-hi".
std::optional<RangeFault> expand_range(const TextPiece& range, Texts& numbers) {
  const std::size_t dash = range.text.find('-');
  const std::string_view low_text = range.text.substr(0, dash);
  const std::optional<std::uint64_t> low = number_of(low_text);
  const std::optional<std::uint64_t> high =
      dash == std::string_view::npos ? low : number_of(range.text.substr(dash + 1));
  if (!low || !high) return fault(range, "is not a number or a range low-high");
  if (*high < *low) return fault(range, "is a descending range");
  if (*high - *low >= kMaxHosts || numbers.size() + (*high - *low) >= kMaxHosts)
    return too_many(range);
  for (std::uint64_t number = *low; number <= *high; ++number)
    numbers.push_back(zero_padded(number, low_text.size()));
  return {};
}

// Splits "a[1-2]b[3]" into its alternating texts and brackets.
std::optional<RangeFault> cut_into_parts(const TextPiece& piece, std::vector<Texts>& parts) {
  for (std::size_t at = 0;;) {
    const std::size_t open = piece.text.find_first_of("[]", at);
    parts.push_back({std::string(piece.text.substr(at, open - at))});
    if (open == std::string_view::npos) return {};
    const std::size_t close = piece.text.find_first_of("[]", open + 1);
    if (piece.text[open] == ']' || close == std::string_view::npos || piece.text[close] == '[') {
      RangeFault alone = fault(piece, "has an unmatched bracket");
      alone.column += open;
      return alone;
    }
    Texts& numbers = parts.emplace_back();
    for (const TextPiece& range : cut_at_commas(piece.sub(open + 1, close - open - 1), false))
      if (std::optional<RangeFault> wrong = expand_range(range, numbers)) return wrong;
    at = close + 1;
  }
}

// Returns the indices of the parts, the fastest varying first. Texts between brackets have one
// value each and never vary.
std::vector<std::size_t> by_speed(const std::vector<Texts>& parts, BracketOrder order) {
  std::vector<std::size_t> speeds;
  const std::size_t count = parts.size();
  if (order == BracketOrder::kLastToFirst) {
    for (std::size_t i = count; i-- > 0;) speeds.push_back(i);
    return speeds;
  }
  // Texts and brackets alternate, and the last part is a text.
  if (count > 1) speeds.push_back(count - 2);
  for (std::size_t i = 0; i + 2 < count; ++i) speeds.push_back(i);
  return speeds;
}

}  // namespace

std::vector<TextPiece> cut_at_commas(const TextPiece& list, bool outside_brackets) {
  std::vector<TextPiece> pieces;
  bool is_inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.text.size(); ++i) {
    if (i < list.text.size()) {
      const char c = list.text[i];
      if (outside_brackets && (c == '[' || c == ']')) is_inside = c == '[';
      if (c != ',' || is_inside) continue;
    }
    pieces.push_back(list.sub(begin, i - begin));
    begin = i + 1;
  }
  return pieces;
}

std::optional<RangeFault> expand_host_ranges(const TextPiece& piece, BracketOrder order,
                                             std::vector<std::string>& names) {
  std::vector<Texts> parts;
  if (std::optional<RangeFault> wrong = cut_into_parts(piece, parts)) return wrong;
  std::size_t count = 1;
  for (const Texts& part : parts) {
    count *= part.size();
    if (names.size() + count > kMaxHosts) return too_many(piece);
  }
  const std::vector<std::size_t> speeds = by_speed(parts, order);
  std::vector<std::size_t> chosen(parts.size(), 0);
  for (std::size_t made = 0; made < count; ++made) {
    std::string& name = names.emplace_back();
    for (std::size_t i = 0; i < parts.size(); ++i) name += parts[i][chosen[i]];
    for (const std::size_t i : speeds) {
      chosen[i] = (chosen[i] + 1) % parts[i].size();
      if (chosen[i] != 0) break;
    }
  }
  return {};
}

NumberedName cut_at_number(std::string_view name) {
  const std::size_t last = name.find_last_of("0123456789");
  if (last == std::string_view::npos || name.find(':') != std::string_view::npos)
    return {name, {}, {}};
  std::size_t first = last;
  while (first > 0 && is_digit(name[first - 1])) --first;
  // Without a name before it, "[1-3]" could not be parsed again.
  if (first == 0 || last - first >= kMaxRangeDigits) return {name, {}, {}};
  return {name.substr(0, first), name.substr(first, last + 1 - first), name.substr(last + 1)};
}

std::string range_text(const std::vector<std::string_view>& numbers) {
  std::string text;
  for (std::size_t at = 0; at < numbers.size();) {
    const std::string_view low = numbers[at];
    std::string_view high = low;
    while (++at < numbers.size() && numbers[at] == zero_padded(*number_of(high) + 1, low.size()))
      high = numbers[at];
    text += (text.empty() ? "" : ",") + std::string(low);
    if (high != low) text += "-" + std::string(high);
  }
  return text;
}

std::string fold_host_names(const std::vector<std::string>& names) {
  struct Group {
    NumberedName name;
    // Sorted by length first, which yields the numeric order.
    std::set<std::pair<std::size_t, std::string_view>> numbers;
  };
  const auto key_of = [](const NumberedName& name, std::size_t width) {
    return std::string(name.prefix) + "\n" + std::string(name.suffix) + "\n" +
           std::to_string(width);
  };
  // A number without a leading zero joins the padded group of its own length, if there is one.
  std::set<std::string> padded_keys;
  for (const std::string& text : names) {
    const NumberedName name = cut_at_number(text);
    if (name.digits.size() > 1 && name.digits.front() == '0')
      padded_keys.insert(key_of(name, name.digits.size()));
  }
  std::vector<Group> groups;
  std::map<std::string, std::size_t> index;
  for (const std::string& text : names) {
    const NumberedName name = cut_at_number(text);
    const bool is_padded = padded_keys.contains(key_of(name, name.digits.size()));
    const std::string key =
        name.digits.empty() ? text : key_of(name, is_padded ? name.digits.size() : 0);
    const auto [position, is_new] = index.try_emplace(key, groups.size());
    if (is_new) groups.push_back(Group{name, {}});
    groups[position->second].numbers.emplace(name.digits.size(), name.digits);
  }
  std::string out;
  for (const Group& group : groups) {
    std::vector<std::string_view> numbers;
    for (const auto& [length, digits] : group.numbers) numbers.push_back(digits);
    std::string ranges = numbers.size() > 1 ? range_text(numbers) : std::string(numbers.front());
    if (numbers.size() > 1) ranges = "[" + ranges + "]";
    out += (out.empty() ? "" : ",") + std::string(group.name.prefix) + ranges +
           std::string(group.name.suffix);
  }
  return out;
}

bool is_safe_host_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           std::string_view(".-_:%").find(c) != std::string_view::npos;
  });
}

bool is_fake_host(std::string_view name) {
  constexpr std::string_view kPrefix = "fake";
  return name.starts_with(kPrefix) && number_of(name.substr(kPrefix.size())).has_value();
}

}  // namespace ivy
