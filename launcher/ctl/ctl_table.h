// SPDX-License-Identifier: Apache-2.0
// Cells and JSON of ivyctl's lists. Widths count bytes, as those of text_columns(): a column for
// each ASCII character, and more than needed for others. Thread: any.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/screen/json_text.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text_columns.h"

namespace ivy {

// Converts any bytes to one line of at most `max_bytes` bytes; a longer text ends with "...".
std::string table_cell(const RemoteText& text, std::size_t max_bytes);
// Returns the time since then: "00:12:34".
std::string elapsed_since(std::int64_t unix_ms);
// Returns a local time: "14:03:12", or "2026-11-28 14:03:12" for an earlier day.
std::string local_time_text(std::int64_t unix_ms);

// Returns the number of columns of standard output, or nullopt if it is not a terminal.
std::optional<std::size_t> shown_columns();
// Removes columns, in the order of their names in `dispensable`, until the table is no wider than
// `columns`. `lines` contains at least the row of the names, which is the first. The last column
// counts with at most 16 characters, because the caller truncates it.
void drop_columns(std::vector<TextRow>& lines, std::span<const std::string_view> dispensable,
                  std::size_t columns);

// One row of a list: cells for people, and an object for --json.
struct ListRow {
  TextRow cells;
  boost::json::object json;
};
// Prints the rows to standard output, as a table below its header or as a JSON list, escaped
// for display on a terminal. Without rows prints nothing, or an empty JSON list.
void print_list(const TextRow& header, const std::vector<ListRow>& rows, bool as_json);

}  // namespace ivy
