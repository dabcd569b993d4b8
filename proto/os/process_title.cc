#include "proto/os/process_title.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace ivy {
namespace {

// Holds the words and the environment that the process was started with.
std::span<char> place;

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
}

void set_process_title(const std::vector<std::string>& words) {
  if (place.empty()) return;
  std::string title;
  for (const std::string& word : words) title += (title.empty() ? "" : " ") + word;
  move_environment();
  title.resize(std::min(title.size(), place.size() - 1));
  // The kernel takes words that do not end in a zero byte for a title, up to the first zero byte.
  std::ranges::fill(place, '\0');
  std::ranges::copy(title, place.begin());
}

}  // namespace ivy
