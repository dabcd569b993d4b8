// The one grammar of numbered host names, "node[01-08,10]": what stands in brackets is expanded,
// and names are folded. Pure; thread: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// The most hosts in one job: it keeps a mistyped range from filling the memory.
inline constexpr std::size_t kMaxHosts = 4096;

// A piece of a text with the column at which it begins, for messages.
struct TextPiece {
  std::string_view text;
  std::size_t column = 1;

  TextPiece sub(std::size_t from, std::size_t count = std::string_view::npos) const {
    return TextPiece{text.substr(from, count), column + from};
  }
};

// The pieces between commas. Commas in brackets divide only where `outside_brackets` is false.
std::vector<TextPiece> cut_at_commas(const TextPiece& list, bool outside_brackets);

struct RangeFault {
  std::size_t column = 1;
  std::string what;  // "\"3-1\" goes down"
};

// Which of several brackets varies faster: the last, the one before it and so on; or as Slurm has
// it: the last, then the first, the second and so on.
enum class BracketOrder { kLastToFirst, kAsSlurm };

// Adds every name that the text stands for. Numbers are padded as the first one of their range is.
// A fault is returned when brackets or ranges are wrong, or when there would be more than kMaxHosts
// names.
std::optional<RangeFault> expand_host_ranges(const TextPiece& piece, BracketOrder order,
                                             std::vector<std::string>& names);

// A name cut at its last number; `digits` is empty where no range can stand for it, as in an
// address.
struct NumberedName {
  std::string_view prefix;
  std::string_view digits;
  std::string_view suffix;
};
NumberedName cut_at_number(std::string_view name);

// What stands in the brackets for these numbers, in their order: "01-03,10,9".
std::string range_text(const std::vector<std::string_view>& numbers);

// "node[01-03,07]" for messages: the shortest writing of these names.
std::string fold_host_names(const std::vector<std::string>& names);

}  // namespace ivy
