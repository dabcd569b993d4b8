// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/text.h"

#include <algorithm>
#include <cstdio>

namespace ivy {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

// See RFC 3629 and table 3-7 of the Unicode standard.
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned char first = at(0);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xc2 && first <= 0xdf ? 2
                             : first >= 0xe0 && first <= 0xef ? 3
                             : first >= 0xf0 && first <= 0xf4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f) ||
      (first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) > 0x8f))
    return 0;
  return length;
}

bool is_control(std::string_view character) {
  const auto last = static_cast<unsigned char>(character.back());
  const bool is_c1 = last >= 0x80 && last < 0xa0;
  if (character.size() == 1) return last < 0x20 || last == 0x7f || is_c1;
  return character.size() == 2 && character.front() == '\xc2' && is_c1;
}

void add_item(std::string& list, std::string_view item) {
  if (item.empty()) return;
  if (!list.empty()) list += ',';
  list += item;
}

std::string help_entry(std::string typed, std::string_view text, std::size_t column) {
  constexpr std::size_t kWidth = 80;
  std::string out;
  std::string line = std::move(typed);
  if (line.size() + 2 > column) {
    out = line + "\n";
    line.clear();
  }
  line.resize(column, ' ');
  for (const std::string_view word : words_of(text)) {
    if (line.size() + word.size() + 1 > kWidth) {
      out += line + "\n";
      line.assign(column, ' ');
    }
    if (line.size() > column) line += " ";
    line += word;
  }
  return out + line + "\n";
}

std::string_view take_part(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) parts.push_back(take_part(text, separator));
  return parts;
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  std::vector<std::string_view> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) return words;
    words.push_back(text.substr(0, text.find_first_of(kBlanks)));
    text.remove_prefix(words.back().size());
  }
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

std::string hexadecimal(std::uint64_t number) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kHexDigits[number >> shift & 15];
  return text;
}

std::uint64_t name_hash(std::string_view text, std::uint64_t begin) {
  std::uint64_t hash = begin;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of(kHexDigits) == std::string_view::npos;
}

std::string from_hexadecimal(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(kHexDigits.find(digits[i]) * 16 + kHexDigits.find(digits[i + 1]));
  return bytes;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower;
}

std::string tenths_text(std::int64_t ns) {
  const std::int64_t tenths = ns / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string counted(std::size_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string zero_padded(std::uint64_t number, std::size_t width) {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

std::string with_port(const std::string& address, int port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

std::optional<double> clock_seconds(std::string_view text) {
  const auto whole = [](std::string_view part) -> std::optional<int> {
    if (part.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    return to_number<int>(part);
  };
  double days = 0;
  const bool has_days = text.find('-') != std::string_view::npos;
  if (has_days) {
    const std::optional<int> written = whole(take_part(text, '-'));
    if (!written) return std::nullopt;
    days = *written;
  }
  double seconds = 0;
  int parts = 0;
  while (true) {
    const bool is_last = text.find(':') == std::string_view::npos;
    const std::string_view part = take_part(text, ':');
    const std::optional<int> number = whole(part);
    if (!number || ++parts > 3 || (parts > 1 && (*number > 59 || part.size() != 2)))
      return std::nullopt;
    seconds = seconds * 60 + *number;
    if (is_last) break;
  }
  if (parts < 2 || (has_days && parts != 3)) return std::nullopt;
  return days * 86400 + seconds;
}

std::string clock_text(std::int64_t seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld", static_cast<long long>(seconds / 3600),
                static_cast<long long>(seconds / 60 % 60), static_cast<long long>(seconds % 60));
  return text;
}

std::string quoted_word(std::string_view word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string quoted_arguments(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  std::string out;
  for (const std::string& argument : arguments) {
    const bool is_plain =
        !argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos;
    out += (out.empty() ? "" : " ") + (is_plain ? argument : quoted_word(argument));
  }
  return out;
}

}  // namespace ivy
