// SPDX-License-Identifier: Apache-2.0
// Finds the word that a user probably meant. Pure; thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ivy {

// Returns the number of edits (insert, delete, replace, swap of neighbours) between two texts.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the nearest word, or a word that starts with `typed`. Returns an empty text if none is
// near.
std::string nearest_word(std::string_view typed, std::span<const std::string_view> words);

}  // namespace ivy
