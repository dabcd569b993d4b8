// Ranks in few words: "0-2,5". Pure; thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace ivy {

template <class Number>
std::string folded_ranks(std::vector<Number> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ivy
