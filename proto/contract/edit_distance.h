// How far a mistyped word is from those that are known. Pure; thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ivy {

// Edits (insert, delete, replace, swap of neighbours) from one text to the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The word that was probably meant: the nearest one, or one that begins with what was typed. Empty
// when none is near.
std::string nearest_word(std::string_view typed, std::span<const std::string_view> words);

}  // namespace ivy
