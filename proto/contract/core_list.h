// SPDX-License-Identifier: Apache-2.0
// Sets of logical processors in the kernel's format: numbers and ranges, separated by commas, as in
// "0-3,8". The names say "core", but a physical core with two hardware threads has two numbers.
// Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Numbers of processors, sorted, without duplicates.
using CoreList = std::vector<int>;

// Higher numbers are an error: the kernel supports at most 8192 processors.
inline constexpr int kMaxProcessorNumber = 8191;

// Parses "0-3,8\n" to {0,1,2,3,8}. Ranges may be in any order; white space at the end is ignored.
// Returns an empty list both for an empty and for a malformed text: to callers, both mean that no
// processors are known.
CoreList parse_core_list(std::string_view text);
// Formats a list as the shortest such text.
std::string core_list_text(const CoreList& cores);
// Returns the processors that are in both lists.
CoreList common_cores(const CoreList& one, const CoreList& other);
// Returns the processors that are in either list.
CoreList joined_cores(const CoreList& one, const CoreList& other);

}  // namespace ivy
