// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/fetch_rule.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// expanded_pattern() has their values in the same order.
constexpr std::string_view kPlaceholders[] = {"{rank}", "{local_rank}", "{host}"};

// Returns the position of the bracket that closes the bracket expression at `begin`; npos: none
// does.
// "[]a]", "[!]a]" and "[[:digit:]]" contain brackets.
std::size_t end_of_brackets(std::string_view text, std::size_t begin) {
  std::size_t end = begin + 1;
  if (end < text.size() && (text[end] == '!' || text[end] == '^')) ++end;
  if (end < text.size() && text[end] == ']') ++end;
  while (end < text.size() && text[end] != ']') {
    const std::size_t close =
        text.substr(end).starts_with("[:") ? text.find(":]", end) : std::string_view::npos;
    end = close == std::string_view::npos ? end + 1 : close + 2;
  }
  return end < text.size() ? end : std::string_view::npos;
}

// Returns the position of the last colon that is not inside a bracket expression.
std::size_t separating_colon(std::string_view text) {
  std::size_t found = std::string_view::npos;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ':') found = i;
    const std::size_t end = text[i] == '[' ? end_of_brackets(text, i) : std::string_view::npos;
    if (end != std::string_view::npos) i = end;
  }
  return found;
}

// Rejects braces that do not begin a placeholder. "[{]" stands for a brace in a name.
Result<void> check_placeholders(std::string_view pattern) {
  for (std::size_t at = pattern.find('{'); at != std::string_view::npos;
       at = pattern.find('{', at + 1)) {
    const bool is_known =
        std::any_of(std::begin(kPlaceholders), std::end(kPlaceholders),
                    [&](std::string_view known) { return pattern.substr(at).starts_with(known); });
    if (!is_known && (at == 0 || pattern[at - 1] != '['))
      return usage_error("\"" + std::string(pattern.substr(at)) +
                             "\" does not start with one of {rank}, {local_rank}, {host}",
                         "use one --fetch for each alternative; write [{] for a brace in a name");
  }
  return {};
}

}  // namespace

Result<FetchRule> parse_fetch(const std::string& text) {
  const std::size_t colon = separating_colon(text);
  FetchRule rule{text.substr(0, colon), std::string(kFetchDirectory)};
  if (colon != std::string::npos) rule.directory = text.substr(colon + 1);
  if (rule.pattern.empty() || rule.directory.empty())
    return usage_error("\"" + text + "\" is not PATTERN or PATTERN:DIR",
                       "'out/*.pt' or 'out/*.pt:results'");
  if (text.size() > PATH_MAX) return usage_error("the pattern is longer than a path can be");
  if (text.find('\0') != std::string::npos) return usage_error("the pattern contains a zero byte");
  for (const std::string_view part : parts_of(rule.pattern, '/'))
    if (part == "..")
      return usage_error("\"" + rule.pattern + "\" leaves the working directory by \"..\"",
                         "write an absolute path, such as '/scratch/run/*.pt'");
  if (rule.pattern.find_first_not_of("/.") == std::string::npos)
    return usage_error("\"" + rule.pattern + "\" is the whole directory",
                       "'*' for everything that is not hidden");
  IVY_CHECK(check_placeholders(rule.pattern));
  std::filesystem::path directory = rule.directory;
  if (directory.is_relative()) directory = IVY_TRY(current_directory()) / directory;
  rule.directory = directory.lexically_normal();
  if (rule.directory.size() > 1 && rule.directory.ends_with('/')) rule.directory.pop_back();
  return rule;
}

bool is_per_rank(std::string_view pattern) {
  return pattern.find("{rank}") != std::string_view::npos ||
         pattern.find("{local_rank}") != std::string_view::npos;
}

std::string expanded_pattern(std::string_view pattern, const FetchPlace& place) {
  const std::string values[] = {std::to_string(place.rank), std::to_string(place.local_rank),
                                place.host};
  std::string text;
  while (!pattern.empty()) {
    const auto* const placeholder =
        std::find_if(std::begin(kPlaceholders), std::end(kPlaceholders),
                     [&](std::string_view known) { return pattern.starts_with(known); });
    if (placeholder == std::end(kPlaceholders)) {
      text += pattern.front();
      pattern.remove_prefix(1);
    } else {
      text += values[placeholder - std::begin(kPlaceholders)];
      pattern.remove_prefix(placeholder->size());
    }
  }
  return text;
}

}  // namespace ivy
