// Reads which shared libraries a program names in its own file (DT_NEEDED). Starts nothing, and
// ignores what those libraries need in turn: an image library that can render on many hosts brings
// MPI to programs that never use it. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// In the order of the file, at most 256. Empty for a file that is not a 64-bit program of this byte
// order, is static, is broken, or cannot be read.
std::vector<std::string> needed_libraries(const std::string& path);

}  // namespace ivy
