// Which shared libraries a program names in its own file (DT_NEEDED). Reads the file, starts
// nothing; what those libraries need in turn is not asked: a picture library that can draw on many
// hosts brings MPI to programs that never use it. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// In the order of the file, at most 256. Empty for what is no 64-bit program of this byte order, is
// static, is broken, or cannot be read.
std::vector<std::string> needed_libraries(const std::string& path);

}  // namespace ivy
