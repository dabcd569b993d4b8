// SPDX-License-Identifier: Apache-2.0
#include "proto/os/process_title.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace ivy {
namespace {

// Holds the words and the environment that the process was started with.
std::span<char> place;
std::size_t words_length = 0;  // The part of it that holds the words.

// The first byte behind `strings`, as long as each begins where the one before has ended.
char* end_of(char** strings, char* begin) {
  for (; *strings == begin; ++strings) begin += std::strlen(begin) + 1;
  return begin;
}

void move_environment() {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    if (char* const copy = strdup(*variable)) *variable = copy;
}

}  // namespace

void keep_title_place(char** argv) {
  if (argv[0] == nullptr) return;
  char* const words_end = end_of(argv, argv[0]);
  place = {argv[0], environ == nullptr ? words_end : end_of(environ, words_end)};
  words_length = static_cast<std::size_t>(words_end - argv[0]);
}

void set_process_title(const std::vector<std::string>& words) {
  if (place.empty()) return;
  std::string title;
  for (const std::string& word : words) title += (title.empty() ? "" : " ") + word;
  move_environment();
  title.resize(std::min(title.size(), place.size() - 1));
  // The kernel takes words that do not end in a zero byte for a title, up to the first zero byte.
  std::ranges::copy(title, place.begin());
  // The old words are cleared, and what is left of a variable that is cut; the others stay to be
  // seen.
  for (std::size_t at = title.size(); at < place.size(); ++at) {
    if (at >= words_length && place[at] == '\0') break;
    place[at] = '\0';
  }
}

}  // namespace ivy
