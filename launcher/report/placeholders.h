// SPDX-License-Identifier: Apache-2.0
// Templates with placeholders (a percent sign and a letter), for labels (--label) and names of
// files (--output). Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ivy {

// Values of the letters, for one stream of one rank in one attempt.
struct PlaceholderValues {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;
  std::string_view host = {};
  std::string_view job_id = {};
  int stream = 1;
  std::uint32_t generation = 0;
};

// Explanation of the letters for messages.
inline constexpr std::string_view kPlaceholderNames =
    "%r or %t rank, %R padded rank, %h or %N host, %n number of the host, %l local rank, %s "
    "stream, "
    "%a attempt, %j job, %% a percent sign; %4r pads with zeros";

// Replaces the placeholders: "%r" and "%t" rank, "%R" rank with leading zeros (at least five
// digits, as in file names), "%h" and "%N" host, "%n" its number, "%l" local rank, "%j" job, "%a"
// attempt (generation), "%s" out or err, "%%" a percent sign. A number after the percent sign pads
// a number with zeros, as in Slurm. Keeps all other text.
std::string filled_template(std::string_view text, const PlaceholderValues& values);
// Returns the first unknown placeholder, such as "%z".
std::optional<std::string> unknown_placeholder(std::string_view text);

}  // namespace ivy
