// SPDX-License-Identifier: Apache-2.0
// Shared by ivyctl's lists: cells and JSON. Thread: any.
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

// Makes one line of at most that many columns, whatever bytes are in the text.
std::string table_cell(const RemoteText& text, std::size_t columns);
// The time since then on a clock: "00:12:34".
std::string elapsed_since(std::int64_t unix_ms);
// A moment of local time: "14:03:12", before today "2026-11-28 14:03:12".
std::string moment_text(std::int64_t unix_ms);

// Columns of standard output, if it is a terminal.
std::optional<std::size_t> shown_columns();
// Leaves out columns, in the order of their names in `dispensable`, until the table below its first
// row, the names, is no wider than that. The last column is cut by the caller: it counts as no
// wider than 16.
void drop_columns(std::vector<TextRow>& lines, std::span<const std::string_view> dispensable,
                  std::size_t columns);

// One row of a list: for people, and with --json for programs.
struct ListRow {
  TextRow cells;
  boost::json::object json;
};
// Prints the rows to standard output, as a table below its header or as a list of objects, escaped
// so that a terminal shows it as it is. An empty table prints nothing.
void print_list(const TextRow& header, const std::vector<ListRow>& rows, bool as_json);

}  // namespace ivy
