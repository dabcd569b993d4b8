// SPDX-License-Identifier: Apache-2.0
#include "proto/os/process_title.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace ivy {
namespace {

// The memory of the arguments and the environment with which the process was started.
std::span<char> buffer;
std::size_t words_length = 0;  // Length of the arguments' part of `buffer`.

// Returns the end of consecutive `strings` that start at `begin`, up to the first one that does not
// follow its predecessor directly.
char* end_of(char** strings, char* begin) {
  for (; *strings == begin; ++strings) begin += std::strlen(begin) + 1;
  return begin;
}

void move_environment() {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    if (char* const copy = strdup(*variable)) *variable = copy;
}

}  // namespace

void reserve_title_buffer(char** argv) {
  if (argv[0] == nullptr) return;
  char* const words_end = end_of(argv, argv[0]);
  buffer = {argv[0], environ == nullptr ? words_end : end_of(environ, words_end)};
  words_length = static_cast<std::size_t>(words_end - argv[0]);
}

void set_process_title(const std::vector<std::string>& words) {
  if (buffer.empty()) return;
  std::string title;
  for (const std::string& word : words) title += (title.empty() ? "" : " ") + word;
  move_environment();
  title.resize(std::min(title.size(), buffer.size() - 1));
  // If the arguments' memory does not end with a zero byte, the kernel shows it up to the first
  // zero byte.
  std::ranges::copy(title, buffer.begin());
  // Clear the rest of the old arguments, and of a variable that is cut. Later variables remain
  // visible.
  for (std::size_t at = title.size(); at < buffer.size(); ++at) {
    if (at >= words_length && buffer[at] == '\0') break;
    buffer[at] = '\0';
  }
}

}  // namespace ivy
