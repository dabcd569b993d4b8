// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/env_files.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <optional>

#include "launcher/options/exports.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::string_view kBlanks = " \t";
// Larger files are not lists of variables.
constexpr std::size_t kMaxEnvFileBytes = 1u << 20;

// One line, with its location for messages.
struct Line {
  std::string_view text;
  std::string path;
  std::size_t number = 1;

  Error error(std::size_t at, const std::string& what, const std::string& fix) const {
    return Error{Code::kInvalidArgument,
                 path + ":" + std::to_string(number) + ":" + std::to_string(at + 1) + ": " + what,
                 fix};
  }
  std::size_t skip_blanks(std::size_t at) const {
    return std::min(text.find_first_not_of(kBlanks, at), text.size());
  }
};

// Returns true for "$NAME", "${", "$(" and the like, which a shell would expand.
bool is_expanded(std::string_view text, std::size_t at) {
  if (text[at] == '`') return true;
  if (text[at] != '$' || at + 1 == text.size()) return false;
  const char next = text[at + 1];
  return std::isalnum(static_cast<unsigned char>(next)) != 0 ||
         std::string_view("_{(@*#?!-").find(next) != std::string_view::npos;
}

// Parses the value in '...' or "..." that starts here; only a comment may follow it.
Result<std::string> quoted_value(const Line& line, std::size_t begin) {
  const char quote = line.text[begin];
  std::string value;
  std::size_t at = begin + 1;
  for (; at < line.text.size() && line.text[at] != quote; ++at) {
    const char c = line.text[at];
    const bool is_escape = quote == '"' && c == '\\' && at + 1 < line.text.size() &&
                           std::string_view("\"\\$`").find(line.text[at + 1]) != std::string::npos;
    if (is_escape) {
      value += line.text[++at];
      continue;
    }
    if (quote == '"' && is_expanded(line.text, at))
      return line.error(at, "variables are not expanded in this file",
                        "write the value itself; '...' keeps every byte, \\$ is a dollar sign");
    value += c;
  }
  if (at == line.text.size())
    return line.error(begin, std::string("the quote ") + quote + " is not closed on this line",
                      "a value cannot span lines");
  const std::size_t rest = line.skip_blanks(at + 1);
  const bool is_comment = rest < line.text.size() && line.text[rest] == '#' && rest > at + 1;
  if (rest < line.text.size() && !is_comment)
    return line.error(rest, "unexpected text after the closing quote",
                      "quote the whole value: NAME='...'");
  return value;
}

// Parses a value without quotes, up to the end of the line or a comment.
Result<std::string> plain_value(const Line& line, std::size_t begin) {
  std::size_t end = begin;
  for (std::size_t at = begin; at < line.text.size(); ++at) {
    const char c = line.text[at];
    const bool is_blank = kBlanks.find(c) != std::string_view::npos;
    if (c == '#' && (at == begin || kBlanks.find(line.text[at - 1]) != std::string_view::npos))
      break;
    if (c == '\'' || c == '"' || c == '\\')
      return line.error(at, std::string("shells and docker interpret ") + c + " differently here",
                        "quote the whole value: NAME='...'");
    if (is_expanded(line.text, at))
      return line.error(at, "variables are not expanded in this file",
                        "write the value itself, or NAME='...' to keep the dollar sign");
    if (!is_blank) end = at + 1;
  }
  return std::string(line.text.substr(begin, end - begin));
}

Result<std::string> value_of(const Line& line, std::size_t begin) {
  if (begin < line.text.size() && (line.text[begin] == '\'' || line.text[begin] == '"'))
    return quoted_value(line, begin);
  const std::size_t first = line.skip_blanks(begin);
  if (first > begin && first < line.text.size() && line.text[first] != '#')
    return line.error(begin, "there is a space after the =", "write NAME=VALUE, or NAME=' VALUE'");
  return plain_value(line, begin);
}

// Returns the length of "export " with its blanks; 0 if the line does not start with it.
std::size_t export_length(std::string_view text, std::size_t at) {
  constexpr std::string_view kExport = "export";
  const std::string_view rest = text.substr(at);
  if (!rest.starts_with(kExport) || rest.size() == kExport.size()) return 0;
  if (kBlanks.find(rest[kExport.size()]) == std::string_view::npos) return 0;
  return std::min(rest.find_first_not_of(kBlanks, kExport.size()), rest.size());
}

Result<void> parse_line(const Line& line, const Environment& caller, Environment& out) {
  std::size_t begin = line.skip_blanks(0);
  if (begin == line.text.size() || line.text[begin] == '#') return {};
  begin += export_length(line.text, begin);
  const std::size_t equals = line.text.find('=', begin);
  const std::size_t blank = line.text.find_first_of(kBlanks, begin);
  std::string item(line.text.substr(begin, std::min(equals, blank) - begin));
  if (equals < blank) {
    item += "=" + IVY_TRY(value_of(line, equals + 1));
  } else if (blank != std::string_view::npos) {
    const std::size_t next = line.skip_blanks(blank);
    if (next < line.text.size() && line.text[next] != '#')
      return line.error(blank, "there is a space in the name or before the =",
                        "write one variable per line: NAME=VALUE");
  }
  const Result<void> added = add_export(out, item, caller);
  if (!added.ok()) return line.error(begin, added.error().message, added.error().fix);
  return {};
}

}  // namespace

Result<Environment> parse_env_file(std::string_view content, const std::string& path,
                                   const Environment& caller) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  Environment out;
  for (std::size_t number = 1; !content.empty(); ++number) {
    Line line{take_part(content, '\n'), path, number};
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    IVY_CHECK(parse_line(line, caller, out));
  }
  return out;
}

Result<Environment> read_env_files(const std::vector<std::string>& paths,
                                   const Environment& caller) {
  Environment all;
  for (const std::string& path : paths) {
    const std::optional<std::string> content = read_file(path, kMaxEnvFileBytes + 1);
    if (!content) return errno_error(Code::kNotFound, "--env-file " + path, errno);
    if (content->size() > kMaxEnvFileBytes)
      return Error{Code::kInvalidArgument, "--env-file " + path + ": larger than 1 MiB"};
    set_variables(all, IVY_TRY(parse_env_file(*content, path, caller)));
  }
  return all;
}

}  // namespace ivy
