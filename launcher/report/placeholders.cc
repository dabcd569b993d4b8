// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/placeholders.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// The minimum number of digits of "%R", as in the default file names "rank00003.out".
constexpr std::size_t kFileRankDigits = 5;

// A placeholder in a template: a percent sign, up to two digits and a letter.
struct Placeholder {
  std::size_t width = 0;  // The digits, or 0 without any.
  char letter = '\0';     // NUL if the template ends before the letter.
  std::size_t size = 0;   // Length of the placeholder, including the percent sign.
};

Placeholder placeholder_at(std::string_view text, std::size_t percent) {
  Placeholder found;
  std::size_t at = percent + 1;
  for (; at < text.size() && at <= percent + 2 && text[at] >= '0' && text[at] <= '9'; ++at)
    found.width = 10 * found.width + static_cast<std::size_t>(text[at] - '0');
  if (at < text.size()) found.letter = text[at++];
  found.size = at - percent;
  return found;
}

// The table of letters. Returns std::nullopt for an unknown one. The width applies to numbers only.
std::optional<std::string> value_of(const Placeholder& placeholder,
                                    const PlaceholderValues& values) {
  const auto number = [&](auto value, std::size_t width) {
    return zero_padded(static_cast<std::uint64_t>(value), width);
  };
  switch (placeholder.letter) {
    case 'r':
    case 't':  // Slurm's letter for the same.
      return number(values.rank, placeholder.width);
    case 'R':  // Padded, so that names of files sort by rank.
      return number(values.rank, std::max(placeholder.width, kFileRankDigits));
    case 'n':  // The host's number in the job.
      return number(values.host_index, placeholder.width);
    case 'l':  // The rank's number on its host.
      return number(values.local_rank, placeholder.width);
    case 'a':  // The attempt: 0, and one more after each restart.
      return number(values.generation, placeholder.width);
    case 'h':
    case 'N':  // Slurm's letter for the same.
      return std::string(values.host);
    case 'j':
      return std::string(values.job_id);
    case 's':  // Standard output or standard error.
      return values.stream == 2 ? "err" : "out";
    case '%':
      return "%";
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string filled_template(std::string_view text, const PlaceholderValues& values) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '%') {
      out += text[at++];
      continue;
    }
    const Placeholder found = placeholder_at(text, at);
    out += value_of(found, values).value_or(std::string(text.substr(at, found.size)));
    at += found.size;
  }
  return out;
}

std::optional<std::string> unknown_placeholder(std::string_view text) {
  for (std::size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', at)) {
    const Placeholder found = placeholder_at(text, at);
    if (!value_of(found, {})) return std::string(text.substr(at, found.size));
    at += found.size;
  }
  return std::nullopt;
}

}  // namespace ivy
