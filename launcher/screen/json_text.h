// SPDX-License-Identifier: Apache-2.0
// JSON strings made of arbitrary bytes. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace ivy {

// The version of all JSON that ivyrun and ivyctl write for programs (docs/machine-output.md).
// Adding a field does not change it; removing one or changing its meaning does.
inline constexpr std::string_view kMachineSchema = "ivyrun/1";

// Returns the text as a JSON string. JSON strings hold characters, not bytes: if the text is not
// UTF-8, each of its bytes becomes one character, U+0000 to U+00FF.
boost::json::string json_text(const std::string& text);

template <class Words>
boost::json::array json_list(const Words& words) {
  boost::json::array list;
  for (const std::string& word : words) list.emplace_back(json_text(word));
  return list;
}

// Returns the value as one line without a newline. Control characters are escaped, as a terminal
// might obey them.
std::string json_line(const boost::json::value& value);

}  // namespace ivy
