// SPDX-License-Identifier: Apache-2.0
// Formats rows of cells as columns of text. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

using TextRow = std::vector<std::string>;

// Columns are as wide as their widest cell and separated by two blanks, after an indent. There must
// be at least one row, and all rows must have as many cells as the first. Cells are escaped, so
// they may contain text from other hosts.
std::string text_columns(const std::vector<TextRow>& rows, const std::string& indent = "  ");

// Formats a size as mebibytes, rounded up: "5 MiB".
std::string mebibytes(std::uint64_t bytes);
// Formats a size in binary units, such as "512 MiB" or "1.5 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ivy
