// SPDX-License-Identifier: Apache-2.0
// The lines that ivy-probe prints: one fact per line, a keyword and fields separated by tabs, after
// a prefix that distinguishes them from a library's output. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/text.h"

namespace ivy {

inline constexpr std::string_view kProbeGreeting = "ivy-probe 1";
inline constexpr std::string_view kProbeMark = "ivy ";

using ProbeFields = std::vector<std::string_view>;

// Replaces the control characters in a library's text by spaces, so that it stays one field.
std::string probe_field(std::string text);
// Appends one line, "ivy KEYWORD\tFIELD...\n", to `text`.
void add_probe_line(std::string& text, std::string_view keyword, std::vector<std::string> fields);
// Splits a line without its prefix into the keyword and the fields.
ProbeFields split_probe_line(std::string_view line);

}  // namespace ivy
