// SPDX-License-Identifier: Apache-2.0
// Formats rows of cells as columns of text. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

using TextRow = std::vector<std::string>;

// Columns are as wide as their widest cell and separated by two blanks, after an indent. All rows
// must have as many cells as the first; at least one. Cells are escaped, so they may contain text
// from other hosts.
std::string text_columns(const std::vector<TextRow>& rows, const std::string& indent = "  ");

// A size as "5 MiB", rounded up.
std::string mebibytes(std::uint64_t bytes);
// A size in binary units, such as "512 MiB" or "1.5 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ivy
