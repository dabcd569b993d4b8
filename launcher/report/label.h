// SPDX-License-Identifier: Apache-2.0
// The label before each line of a worker. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {

enum class Colour { kOff, kOn };

// The parts that all labels of one generation share.
struct LabelStyle {
  std::string choice = "auto";  // auto | none | rank | host | a template
  std::string job_id;
  std::uint32_t generation = 0;
  int max_attempts = 1;         // More than 1: labels say which attempt this is.
  int max_rank = 0;             // Decides the width of ranks.
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

// "[ 27 node03] ", on one host "[27] "; standard error has a '!' behind the bracket: "[!27 node03]
// ". A template is one of placeholders.h. Empty for none, and for auto when one rank is shown. With
// restarts: "[ 27 node03 #2/4] ".
std::string make_label(const LabelStyle& style, const LabelSubject& subject, Colour colour);

}  // namespace ivy
