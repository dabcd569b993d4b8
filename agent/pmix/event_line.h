// SPDX-License-Identifier: Apache-2.0
// Lines from ivy-pmix to the supervisor, one for each event, and to a rank that requests its
// variables. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// "joined 3\n": the rank called MPI_Init.
std::string joined_line(std::uint32_t rank);
// "left 3\n": the rank called MPI_Finalize.
std::string left_line(std::uint32_t rank);
// "abort 3 7 TEXT\n": the rank called MPI_Abort with code 7.
std::string abort_line(std::uint32_t rank, int code, std::string_view text);
// "vanished 3\n": the rank's connection closed before MPI_Finalize.
std::string vanished_line(std::uint32_t rank);
// "error TEXT\n": ranks cannot be served.
std::string error_line(std::string_view text);

// Escapes a text so that it fits into a line: "\n" for a line end, "\\" for a backslash, "\x1b" for
// an unprintable byte. Truncates text that is too long for a line.
std::string escaped_text(std::string_view text);

// Parses "rank 3" without its line end. Returns -1 for any other text.
std::int64_t requested_rank(std::string_view line);
// Joins the texts, each followed by a NUL.
std::string answer_text(const std::vector<std::string>& variables);

}  // namespace ivy
