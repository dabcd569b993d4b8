// SPDX-License-Identifier: Apache-2.0
// Finds the MPI library that a process has loaded, and the version in its file: the file's name
// says little, because Intel MPI and every MPICH since 3 call it libmpi.so.12. Thread: any.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// "Open MPI 5.0.11", "MPICH 4.0.2", "Intel MPI 2021.18.1", "MVAPICH": identifies a library by its
// constants, without a version if they contain none or several. Empty: not an MPI library. Pure.
std::string mpi_text(std::string_view constants);

// Reads the file's first constants; empty also if it cannot be read.
std::string mpi_text_of_file(const std::string& path);

// The MPI libraries that this process has mapped, as paths that lead there from this process's
// namespace too, in the order of their addresses. Waits while the process changes its mappings.
std::vector<std::string> mapped_mpi_libraries(pid_t pid);

}  // namespace ivy
