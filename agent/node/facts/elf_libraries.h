// SPDX-License-Identifier: Apache-2.0
// Parses the headers of an ELF program or shared library without running it. Thread: any.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Returns the shared libraries that a file names (DT_NEEDED), in their order, at most 256. Does not
// follow those libraries' own dependencies: an image library that can render on many hosts brings
// MPI to programs that never use it. Returns nothing for a file that is not a 64-bit program of
// this byte order, is static, is broken, or cannot be read.
std::vector<std::string> needed_libraries(const std::string& path);

// Returns the bytes of its read-only segments, which contain its strings; at most 32 MiB. Returns
// nothing in the same cases.
std::string file_constants(const std::string& path);

}  // namespace ivy
