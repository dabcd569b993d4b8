// What ivyctl's lists have in common: cells and JSON. Thread: any.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/remote_text.h"

namespace ivy {

// Makes one line of at most that many columns, whatever bytes are in the text.
std::string table_cell(const RemoteText& text, std::size_t columns);
// "00:12:34" since then.
std::string elapsed_since(std::int64_t unix_ms);
// JSON has no bytes: each byte of a text that is no UTF-8 is one character, U+0000 to U+00FF.
boost::json::string json_text(const std::string& text);
// Prints a line for each row to standard output, escaped so that a terminal shows it as it is.
void print_json(const boost::json::array& rows);

}  // namespace ivy
