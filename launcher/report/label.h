// SPDX-License-Identifier: Apache-2.0
// The label before each line of a worker. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {

enum class Colour { kOff, kOn };

// Properties shared by all labels of one generation.
struct LabelStyle {
  std::string choice = "auto";  // auto | none | rank | host | a template
  std::string job_id;
  std::uint32_t generation = 0;
  int max_attempts = 1;         // If more than 1, labels contain the number of the attempt.
  int max_rank = 0;             // Determines the width of ranks.
  std::size_t shown_ranks = 1;  // Ranks that reach the console.
  std::size_t hosts = 1;
  std::size_t host_width = 0;  // Length of the longest host name.
};

struct LabelSubject {
  int rank = 0;
  int local_rank = 0;
  std::string_view host;
  int stream = 1;
  int host_index = 0;
};

// Returns "[ 27 node03] ", or "[27] " on one host; for standard error, a '!' follows the bracket:
// "[!27 node03] ". With restarts: "[ 27 node03 #2/4] ". A template uses placeholders.h. Empty for
// "none", and for "auto" if only one rank is shown.
std::string make_label(const LabelStyle& style, const LabelSubject& subject, Colour colour);

}  // namespace ivy
