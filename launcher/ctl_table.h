// What ivyctl's lists have in common: columns and JSON. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/remote_text.h"

namespace ivy {

// One line of at most so many columns, whatever bytes are in the text.
std::string table_cell(const RemoteText& text, std::size_t columns);
// "00:12:34" since then.
std::string elapsed_since(std::int64_t unix_ms);
// To standard output; the first line is the heading.
void print_table(std::vector<std::vector<std::string>> lines);
// A JSON string, escaped so that a terminal shows it as it is. JSON has no bytes: text that is no
// UTF-8 is written byte by byte as \u00XX.
std::string json_text(const std::string& text);

}  // namespace ivy
