// Small things that are done to text in several programs. Pure; thread: any.
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

// The length of the well-formed UTF-8 character at the front; 0: there is none.
std::size_t utf8_length(std::string_view text);
// A control character, or the byte of one: C0, DEL, and C1, which some terminals obey as they obey
// ESC, in UTF-8 too.
bool is_control(std::string_view character);

// Adds to a list with commas; an empty item adds nothing.
void add_item(std::string& list, std::string_view item);

// Cuts the text at its first separator: returns what stands before it, and leaves what follows.
std::string_view take_part(std::string_view& text, char separator);
// All parts; none of an empty text, nor behind a separator at the end.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

// The words of a text, between blanks and line ends.
std::vector<std::string_view> words_of(std::string_view text);

// A number that fills the whole text; nothing where something else stands there, or it does not
// fit.
template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}
// The same into a place, which becomes 0 where the text is no number; then false.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const std::optional<Number> read = to_number<Number>(text);
  number = read.value_or(0);
  return read.has_value();
}

// Bytes as lower-case digits, two for each, and back from nothing but such digits.
std::string hexadecimal(std::string_view bytes);
std::string hexadecimal(std::uint64_t number);
bool is_hexadecimal(std::string_view text);
std::string from_hexadecimal(std::string_view digits);

// FNV-1a, which is the same in every process and build: for names that several find by themselves.
inline constexpr std::uint64_t kHashBegin = 14695981039346656037u;
std::uint64_t name_hash(std::string_view text, std::uint64_t begin = kHashBegin);

// Runs of sorted numbers, "0-2,5".
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

// ASCII alone, whatever the locale.
std::string lower_case(std::string_view text);

// A time in seconds with one decimal: "2.3 s".
std::string tenths_text(std::int64_t ns);

// A number with its noun: "1 host", "3 hosts".
std::string counted(std::size_t count, std::string_view noun);

// A number with zeros in front, as wide as that at least.
std::string zero_padded(std::uint64_t number, std::size_t width);

// An address with its port: "10.0.0.1:8080", "[::1]:8080".
std::string with_port(const std::string& address, int port);
// The address without its port, and without brackets.
std::string host_of(const std::string& address);

// A time as schedulers write it, [days-]hours:minutes:seconds or minutes:seconds, in seconds. Only
// its first number may be more than a clock shows.
std::optional<double> clock_seconds(std::string_view text);
// Hours, minutes and seconds: "01:02:03".
std::string clock_text(std::int64_t seconds);

// One word of a command line as a shell needs it.
std::string quoted_word(std::string_view word);
// A command line as a shell needs it, so that it can be pasted.
std::string quoted_arguments(const std::vector<std::string>& arguments);

// One entry of a program's help: what is typed, and from `column` on what it does, wrapped below
// itself at column 98. The text begins on a line of its own where what is typed is too long.
std::string help_entry(std::string typed, std::string_view text, std::size_t column);

}  // namespace ivy
