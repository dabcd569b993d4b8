// SPDX-License-Identifier: Apache-2.0
// Lines from ivy-pmix to the supervisor, one for each event, and to a rank that requests its
// variables. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// "joined 3\n": the rank has called MPI_Init.
std::string joined_line(std::uint32_t rank);
// "left 3\n": it has called MPI_Finalize.
std::string left_line(std::uint32_t rank);
// "abort 3 7 TEXT\n": it has called MPI_Abort with that code.
std::string abort_line(std::uint32_t rank, int code, std::string_view text);
// "vanished 3\n": its connection ended before MPI_Finalize.
std::string vanished_line(std::uint32_t rank);
// "error TEXT\n": ranks cannot be served.
std::string error_line(std::string_view text);

// A text as a part of a line: "\n" for a line's end, "\\" for a backslash, "\x1b" for what is not
// to be shown. Cut where it is longer than a line may be.
std::string escaped_text(std::string_view text);

// "rank 3" without its line end. -1: it is something else.
std::int64_t rank_asked_for(std::string_view line);
// Joins the texts, each followed by a NUL.
std::string answer_text(const std::vector<std::string>& variables);

}  // namespace ivy
