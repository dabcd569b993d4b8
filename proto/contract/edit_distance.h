// Measures how far a mistyped word is from a known one. Pure; thread: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace ivy {

// Edits (insert, delete, replace, swap of neighbours) from one text to the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ivy
