#include "launcher/slurm/nodelist.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "launcher/hosts.h"

namespace ivy {
namespace {

// Digits of a number in a range: 18 fit in 64 bits. Slurm's own bound is no smaller.
constexpr std::size_t kMaxDigits = 18;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<std::uint64_t> to_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return {};
  if (text.size() > kMaxDigits) return {};
  return value;
}

// A piece of the list, and at which column it begins.
struct Piece {
  std::string_view text;
  std::size_t column = 1;

  Piece sub(std::size_t from, std::size_t count = std::string_view::npos) const {
    return Piece{text.substr(from, count), column + from};
  }
  Error error(const std::string& what) const {
    return Error{Code::kInvalidArgument,
                 "column " + std::to_string(column) + ": \"" + std::string(text) + "\" " + what};
  }
};

// Cut at commas; those in brackets do not count when `outside` is set.
std::vector<Piece> cut_at_commas(const Piece& list, bool outside) {
  std::vector<Piece> pieces;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.text.size(); ++i) {
    if (i < list.text.size()) {
      const char c = list.text[i];
      if (outside && (c == '[' || c == ']')) inside = c == '[';
      if (c != ',' || inside) continue;
    }
    pieces.push_back(list.sub(begin, i - begin));
    begin = i + 1;
  }
  return pieces;
}

Error too_many(const Piece& piece) {
  return piece.error("stands for more than " + std::to_string(kMaxHosts) + " hosts");
}

// "001-3" as 001, 002, 003.
Result<void> add_range(const Piece& range, std::vector<std::string>& out) {
  const std::size_t dash = range.text.find('-');
  const std::string_view low_text = range.text.substr(0, dash);
  const std::optional<std::uint64_t> low = to_number(low_text);
  const std::optional<std::uint64_t> high =
      dash == std::string_view::npos ? low : to_number(range.text.substr(dash + 1));
  if (!low || !high) return range.error("is not a number or a range low-high");
  if (*high < *low) return range.error("goes down");
  if (*high - *low >= kMaxHosts || out.size() + (*high - *low) >= kMaxHosts) return too_many(range);
  for (std::uint64_t number = *low; number <= *high; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
    out.push_back(std::move(digits));
  }
  return {};
}

// The text before a bracket, with each of the numbers in it.
Result<std::vector<std::string>> expand_bracket(std::string_view prefix, const Piece& ranges) {
  std::vector<std::string> numbers;
  for (const Piece& range : cut_at_commas(ranges, false)) IVY_CHECK(add_range(range, numbers));
  for (std::string& number : numbers) number.insert(0, prefix);
  return numbers;
}

// The parts of an item, each with all that it stands for.
using Parts = std::vector<std::vector<std::string>>;

Result<Parts> parts_of(const Piece& item) {
  Parts parts;
  std::size_t at = 0;
  while (at < item.text.size()) {
    const std::size_t open = item.text.find_first_of("[]", at);
    if (open == std::string_view::npos) {
      if (!parts.empty())
        return item.error("has text behind its last bracket, which Slurm does not write");
      parts.push_back({std::string(item.text)});
      return parts;
    }
    const std::size_t close = item.text.find_first_of("[]", open + 1);
    if (item.text[open] == ']' || close == std::string_view::npos || item.text[close] == '[')
      return item.error("has a bracket without its partner");
    parts.push_back(IVY_TRY(
        expand_bracket(item.text.substr(at, open - at), item.sub(open + 1, close - open - 1))));
    at = close + 1;
  }
  return parts;
}

// Which part varies after which: the last, then the first, the second, ...
std::vector<std::size_t> order_of(const Parts& parts) {
  std::vector<std::size_t> order{parts.size() - 1};
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) order.push_back(i);
  return order;
}

Result<void> add_item(const Piece& item, std::vector<std::string>& names) {
  if (item.text.empty()) return item.error("is no name: a comma is too many");
  const Parts parts = IVY_TRY(parts_of(item));
  std::size_t count = 1;
  for (const std::vector<std::string>& part : parts) {
    count *= part.size();
    if (names.size() + count > kMaxHosts) return too_many(item);
  }
  const std::vector<std::size_t> order = order_of(parts);
  std::vector<std::size_t> digit(parts.size(), 0);
  for (std::size_t made = 0; made < count; ++made) {
    std::string name;
    for (std::size_t i = 0; i < parts.size(); ++i) name += parts[i][digit[i]];
    if (!is_safe_host_name(name)) return item.error("is not the name of a host");
    names.push_back(std::move(name));
    for (const std::size_t i : order) {
      digit[i] = (digit[i] + 1) % parts[i].size();
      if (digit[i] != 0) break;
    }
  }
  return {};
}

Error too_long() {
  return Error{Code::kInvalidArgument,
               "longer than " + std::to_string(kMaxHostListBytes) + " characters"};
}

Result<void> add_count(const Piece& piece, std::vector<int>& counts) {
  // A billion fits in an int; no node has as many of anything.
  constexpr std::uint64_t kMaxCount = 1'000'000'000;
  std::string_view text = piece.text;
  std::optional<std::uint64_t> times = 1;
  const std::size_t open = text.find("(x");
  if (open != std::string_view::npos && text.ends_with(')')) {
    times = to_number(text.substr(open + 2, text.size() - open - 3));
    text = text.substr(0, open);
  }
  const std::optional<std::uint64_t> count = to_number(text);
  if (!count || !times || *times == 0 || *count > kMaxCount)
    return piece.error("is not a count such as 4 or 4(x2)");
  if (*times > kMaxHosts || counts.size() + *times > kMaxHosts) return too_many(piece);
  counts.insert(counts.end(), *times, static_cast<int>(*count));
  return {};
}

}  // namespace

Result<std::vector<std::string>> parse_nodelist(std::string_view text) {
  if (text.size() > kMaxHostListBytes) return too_long();
  if (text.empty()) return Error{Code::kInvalidArgument, "the list is empty"};
  std::vector<std::string> names;
  for (const Piece& item : cut_at_commas(Piece{text}, true)) IVY_CHECK(add_item(item, names));
  return names;
}

Result<std::vector<int>> parse_node_counts(std::string_view text) {
  if (text.size() > kMaxHostListBytes) return too_long();
  std::vector<int> counts;
  for (const Piece& piece : cut_at_commas(Piece{text}, false)) IVY_CHECK(add_count(piece, counts));
  return counts;
}

// ---- Writing --------------------------------------------------------------------------------

namespace {

// A name cut before its last number; `digits` is empty where it does not end in one that could be
// written as a range.
struct CutName {
  std::string_view prefix;
  std::string_view digits;
  std::uint64_t number = 0;
};

CutName cut_name(std::string_view name) {
  std::size_t at = name.size();
  while (at > 0 && is_digit(name[at - 1]) && name.size() - at < kMaxDigits) --at;
  const std::string_view digits = name.substr(at);
  // An address ("10.0.0.1", "::1") stays as it is.
  if (digits.empty() || at == 0 || name.find(':') != std::string_view::npos ||
      is_digit(name[at - 1]))
    return CutName{name, "", 0};
  return CutName{name.substr(0, at), digits, *to_number(digits)};
}

// May `next` follow `last` in one "low-high" that is padded as `first` is?
bool continues(const CutName& first, const CutName& last, const CutName& next) {
  std::string expected = std::to_string(last.number + 1);
  if (expected.size() < first.digits.size())
    expected.insert(0, first.digits.size() - expected.size(), '0');
  return next.digits == expected;
}

}  // namespace

std::string nodelist_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t at = 0; at < names.size();) {
    const CutName first = cut_name(names[at]);
    std::string ranges;
    std::size_t taken = 0;
    while (at + taken < names.size()) {
      const CutName low = cut_name(names[at + taken]);
      if (low.digits.empty() || low.prefix != first.prefix) break;
      CutName high = low;
      for (++taken; at + taken < names.size(); ++taken) {
        const CutName next = cut_name(names[at + taken]);
        if (next.prefix != first.prefix || !continues(low, high, next)) break;
        high = next;
      }
      ranges += (ranges.empty() ? "" : ",") + std::string(low.digits);
      if (high.number != low.number) ranges += "-" + std::string(high.digits);
    }
    if (!text.empty()) text += ",";
    if (taken < 2) {
      text += names[at];
      taken = 1;
    } else {
      text += std::string(first.prefix) + "[" + ranges + "]";
    }
    at += taken;
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
