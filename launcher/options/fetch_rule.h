// SPDX-License-Identifier: Apache-2.0
// The value of --fetch: PATTERN[:DIR]. Pure, except that DIR is made absolute. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy {

// Default of DIR, in the directory in which ivyrun was started.
inline constexpr std::string_view kFetchDirectory = "fetched";
// Patterns of one job: more are a list that the shell has expanded.
inline constexpr std::size_t kMaxFetchRules = 64;

struct FetchRule {
  std::string pattern;    // May contain {rank}, {local_rank} and {host}.
  std::string directory;  // Absolute.
};

// The last colon outside of [...] separates the directory. Rejects "..", braces that are not
// placeholders, and patterns that no file can match.
Result<FetchRule> parse_fetch(const std::string& text);

// A pattern with {rank} or {local_rank} is searched once for each rank.
bool is_per_rank(std::string_view pattern);

struct FetchPlace {
  std::string host;
  int rank = 0;
  int local_rank = 0;
};
std::string expanded_pattern(std::string_view pattern, const FetchPlace& place);

}  // namespace ivy
