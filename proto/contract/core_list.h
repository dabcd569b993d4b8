// SPDX-License-Identifier: Apache-2.0
// Sets of processors as the kernel writes them: "0-3,8". Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Sorted, without duplicates.
using CoreList = std::vector<int>;

// Higher numbers are an error: no machine has more processors (the kernel's own bound is 8192).
inline constexpr int kMaxProcessorNumber = 8191;

// Parses "0-3,8\n" to {0,1,2,3,8}. Returns an empty list for an empty or malformed text.
CoreList parse_core_list(std::string_view text);
// Formats a list as the shortest such text.
std::string core_list_text(const CoreList& cores);
// Returns the processors that are in both lists.
CoreList common_cores(const CoreList& one, const CoreList& other);
// Returns the processors that are in either list.
CoreList joined_cores(const CoreList& one, const CoreList& other);

}  // namespace ivy
