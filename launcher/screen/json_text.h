// SPDX-License-Identifier: Apache-2.0
// JSON of texts that may hold any bytes. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace ivy {

// The version of all JSON that ivyrun and ivyctl write for programs (docs/machine-output.md).
// Adding a field does not change it; removing one or changing its meaning does.
inline constexpr std::string_view kMachineSchema = "ivyrun/1";

// JSON has no bytes. If a text is not UTF-8, each byte becomes one character, U+0000 to U+00FF.
boost::json::string json_text(const std::string& text);

template <class Words>
boost::json::array json_list(const Words& words) {
  boost::json::array list;
  for (const std::string& word : words) list.emplace_back(json_text(word));
  return list;
}

// One line without its end, in which no control character commands a terminal.
std::string json_line(const boost::json::value& value);

}  // namespace ivy
