// SPDX-License-Identifier: Apache-2.0
// The lines that ivy-probe prints: a keyword and fields behind tabs, one fact a line, behind a mark
// that tells them from what a library may print. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/text.h"

namespace ivy {

inline constexpr std::string_view kProbeGreeting = "ivy-probe 1";
inline constexpr std::string_view kProbeMark = "ivy ";

using ProbeFields = std::vector<std::string_view>;

// A library's text, as it may stand in a field: it must not look like two fields or two lines.
std::string probe_field(std::string text);
// Appends one line, "ivy KEYWORD\tFIELD...\n", to a text.
void add_probe_line(std::string& text, std::string_view keyword, std::vector<std::string> fields);
// The keyword and the fields of a line whose mark has been taken away.
ProbeFields split_probe_line(std::string_view line);

}  // namespace ivy
