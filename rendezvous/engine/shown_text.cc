// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/engine/shown_text.h"

#include <algorithm>

namespace ivy::store {

std::string shown_key(std::string_view key) {
  constexpr std::size_t kShownBytes = 120;
  std::string text;
  for (const char c : key.substr(0, kShownBytes)) text.push_back(c >= ' ' && c <= '~' ? c : '?');
  if (key.size() > kShownBytes) text += "...";
  return text;
}

std::string shown_list(const std::vector<std::string>& names, std::size_t count, std::size_t most) {
  std::string text;
  const std::size_t named = std::min(names.size(), most);
  for (std::size_t i = 0; i < named; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (count > named) text += " and " + std::to_string(count - named) + " more";
  return text;
}

}  // namespace ivy::store
