// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/python_command.h"

#include <algorithm>
#include <cstddef>

namespace ivy {
namespace {

Error not_python(std::string why) { return Error{Code::kFailedPrecondition, std::move(why)}; }

}  // namespace

bool is_python_name(std::string_view program) {
  const std::size_t slash = program.rfind('/');
  if (slash != std::string_view::npos) program.remove_prefix(slash + 1);
  if (!program.starts_with("python")) return false;
  program.remove_prefix(std::string_view("python").size());
  return std::all_of(program.begin(), program.end(),
                     [](char letter) { return letter == '.' || (letter >= '0' && letter <= '9'); });
}

Result<std::vector<std::string>> python_options(const std::vector<std::string>& arguments) {
  if (arguments.empty() || !is_python_name(arguments.front()))
    return not_python("run a program that is not Python");
  std::vector<std::string> options = {arguments.front()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-" || word.empty()) return not_python("read their program from standard input");
    if (word == "--check-hash-based-pycs" && i + 1 < arguments.size()) {
      options.push_back(word);
      options.push_back(arguments[++i]);
      continue;
    }
    if (word.starts_with("--")) return not_python("use " + word);
    if (word.front() != '-') return options;
    bool has_value_in_next = false;
    for (std::size_t at = 1; at < word.size(); ++at) {
      const char letter = word[at];
      if (letter == 'c' || letter == 'm') {
        if (at > 1) options.push_back(word.substr(0, at));
        return options;
      }
      constexpr std::string_view kWithoutHook = "EISVh?";
      if (kWithoutHook.find(letter) != std::string_view::npos)
        return not_python(std::string("use python -") + letter +
                          ", with which Python imports nothing from PYTHONPATH at its start");
      if (letter != 'W' && letter != 'X') continue;
      has_value_in_next = at + 1 == word.size();
      break;
    }
    options.push_back(word);
    if (has_value_in_next && i + 1 < arguments.size()) options.push_back(arguments[++i]);
  }
  return not_python("read their program from standard input");
}

}  // namespace ivy
