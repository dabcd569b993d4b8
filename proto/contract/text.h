// Small things that are done to text in several programs. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Joins a container of texts: "a, b, c".
template <class Words>
std::string joined(const Words& words, std::string_view separator) {
  std::string text;
  bool is_first = true;
  for (const auto& word : words) {
    if (!is_first) text += separator;
    text += word;
    is_first = false;
  }
  return text;
}

// A command line as a shell needs it, so that it can be pasted.
std::string quoted_arguments(const std::vector<std::string>& arguments);

// One entry of a program's help: what is typed, and from `column` on what it does, wrapped below
// itself at column 98. The text begins on a line of its own where what is typed is too long.
std::string help_entry(std::string typed, std::string_view text, std::size_t column);

}  // namespace ivy
