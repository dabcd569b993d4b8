// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/error_file.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cctype>
#include <cstdint>
#include <string>

namespace ivy {
namespace {

using boost::json::error_code;
using boost::json::string_view;

// Keeps the first strings named "message" and "py_callstack", even if the text ends inside one of
// them.
class Finder {
 public:
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;

  bool on_key_part(string_view text, std::size_t size, error_code&) {
    if (size == text.size()) key_.clear();
    key_.append(text.data(), text.size());
    return true;
  }
  bool on_key(string_view text, std::size_t size, error_code& error) {
    return on_key_part(text, size, error);
  }
  bool on_string_part(string_view text, std::size_t, error_code&) {
    if (key_ == "message" && !has_message_) found.message.append(text.data(), text.size());
    if (key_ == "py_callstack" && !has_callstack_) found.callstack.append(text.data(), text.size());
    return true;
  }
  bool on_string(string_view text, std::size_t size, error_code& error) {
    on_string_part(text, size, error);
    has_message_ = !found.message.empty();
    has_callstack_ = !found.callstack.empty();
    return true;
  }
  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return true; }
  bool on_object_end(std::size_t, error_code&) { return true; }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t, error_code&) { return true; }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t, string_view, error_code&) { return true; }
  bool on_uint64(std::uint64_t, string_view, error_code&) { return true; }
  bool on_double(double, string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  ErrorFile found;

 private:
  std::string key_;
  bool has_message_ = false;
  bool has_callstack_ = false;
};

// True if the text starts with "\u" and a number whose high byte is in [low, high].
bool has_escape(std::string_view text, int low, int high) {
  if (text.size() < 6 || !text.starts_with("\\u")) return false;
  const int number = std::isxdigit(static_cast<unsigned char>(text[2])) != 0 &&
                             std::isxdigit(static_cast<unsigned char>(text[3])) != 0
                         ? std::stoi(std::string(text.substr(2, 2)), nullptr, 16)
                         : 0;
  return number >= low && number <= high;
}

// Python writes a byte that is not UTF-8 as half of a surrogate pair, which Boost.JSON rejects.
std::string without_lone_surrogates(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    std::size_t taken = rest.starts_with('\\') ? std::min<std::size_t>(2, rest.size()) : 1;
    if (has_escape(rest, 0xd8, 0xdb) && has_escape(rest.substr(6), 0xdc, 0xdf)) {
      taken = 12;
    } else if (has_escape(rest, 0xd8, 0xdf)) {
      out += "\\ufffd";
      at += 6;
      continue;
    }
    out += rest.substr(0, taken);
    at += taken;
  }
  return out;
}

}  // namespace

ErrorFile read_error_file(std::string_view content) {
  boost::json::parse_options options;
  options.allow_invalid_utf8 = true;
  boost::json::basic_parser<Finder> parser(options);
  const std::string text = without_lone_surrogates(content);
  error_code stopped;
  parser.write_some(true, text.data(), text.size(), stopped);
  ErrorFile& found = parser.handler().found;
  if (found.message.empty() && found.callstack.empty()) found.message = std::string(content);
  return found;
}

}  // namespace ivy
