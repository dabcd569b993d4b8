// SPDX-License-Identifier: Apache-2.0
// Helpers for text that several programs use. Pure; thread: any.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Joins a container of texts: "a, b, c".
template <class Words>
std::string joined(const Words& words, std::string_view separator) {
  std::string text;
  bool is_first = true;
  for (const auto& word : words) {
    if (!is_first) text += separator;
    text += word;
    is_first = false;
  }
  return text;
}

// Returns the length of the well-formed UTF-8 character at the front, or 0.
std::size_t utf8_length(std::string_view text);
// Returns whether `character` is a control character: C0, DEL or C1, the latter as one byte or in
// UTF-8. Some terminals obey C1 like ESC.
bool is_control(std::string_view character);

// Appends to a comma-separated list; an empty item appends nothing.
void add_item(std::string& list, std::string_view item);

// Splits off and returns the text before the first separator; `text` keeps the rest.
std::string_view take_part(std::string_view& text, char separator);
// Returns all parts. An empty text has none, and a trailing separator adds none.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

// Returns the words between blanks and line ends.
std::vector<std::string_view> words_of(std::string_view text);

// Parses a number that is the whole text. Returns nothing if the text has other characters or the
// number does not fit.
template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}
// As to_number(), for parsers that read several numbers with &&: stores the number, or 0 on
// failure, and returns true on success.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const std::optional<Number> read = to_number<Number>(text);
  number = read.value_or(0);
  return read.has_value();
}

// Formats bytes as lower-case hexadecimal digits, two per byte.
std::string hexadecimal(std::string_view bytes);
// Formats a number as 16 hexadecimal digits.
std::string hexadecimal(std::uint64_t number);
// Returns true if the text consists of lower-case hexadecimal digits; also if it is empty.
bool is_hexadecimal(std::string_view text);
// Returns the bytes, one for two digits. Requires is_hexadecimal().
std::string from_hexadecimal(std::string_view digits);

// FNV-1a, which yields the same hash in every process and build. For names that several processes
// derive independently.
inline constexpr std::uint64_t kHashBegin = 14695981039346656037u;
std::uint64_t name_hash(std::string_view text, std::uint64_t begin = kHashBegin);

// Formats sorted numbers as ranges: "0-2,5".
template <class Number>
std::string folded_numbers(const std::vector<Number>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

// Converts ASCII letters only, independently of the locale.
std::string lower_case(std::string_view text);

// Formats seconds with one decimal: "2.3 s".
std::string tenths_text(std::int64_t ns);

// Formats a count with its noun: "1 host", "3 hosts".
std::string counted(std::size_t count, std::string_view noun);

// Pads a number with zeros to at least `width` digits.
std::string zero_padded(std::uint64_t number, std::size_t width);

// Joins an address and a port: "10.0.0.1:8080", "[::1]:8080".
std::string with_port(const std::string& address, int port);
// Returns the address without its port and brackets.
std::string host_of(const std::string& address);

// Parses a time in the form that schedulers use, [days-]hours:minutes:seconds or minutes:seconds,
// and returns seconds. Only the first number may exceed a clock's range.
std::optional<double> clock_seconds(std::string_view text);
// Formats hours, minutes and seconds: "01:02:03".
std::string clock_text(std::int64_t seconds);

// Quotes one word of a command line for a shell.
std::string quoted_word(std::string_view word);
// Quotes a command line for a shell, so that it can be pasted.
std::string quoted_arguments(const std::vector<std::string>& arguments);

// Formats one entry of a program's help: the option, and from `column` on its description, wrapped
// at column 80. The description starts on the next line if the option is too long.
std::string help_entry(std::string typed, std::string_view text, std::size_t column);

}  // namespace ivy
