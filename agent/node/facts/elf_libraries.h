// SPDX-License-Identifier: Apache-2.0
// Reads headers of the file of a program or shared library. Starts nothing. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Returns the shared libraries that a file names (DT_NEEDED), in its order, at most 256. Libraries
// that these need in turn are ignored: an image library that can render on many hosts brings MPI to
// programs that never use it. Empty for a file that is not a 64-bit program of this byte order, is
// static, is broken, or cannot be read.
std::vector<std::string> needed_libraries(const std::string& path);

// The bytes that it only reads, where its texts are; at most 32 MiB. Empty likewise.
std::string file_constants(const std::string& path);

}  // namespace ivy
