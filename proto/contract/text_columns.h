// Rows of words as columns of text, and what stands in them. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

using TextRow = std::vector<std::string>;

// Columns as wide as their widest cell, with two blanks between them, behind an indent. All rows
// have as many cells as the first; there is at least one. What other hosts have said may stand in a
// cell: it is escaped here.
std::string text_columns(const std::vector<TextRow>& rows, const std::string& indent = "  ");

// A size as "5 MiB", rounded up to a whole one.
std::string mebibytes(std::uint64_t bytes);
// A size in binary units, such as "512 MiB" or "1.5 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ivy
