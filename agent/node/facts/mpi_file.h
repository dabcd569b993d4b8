// SPDX-License-Identifier: Apache-2.0
// Identifies the MPI library that a process has loaded, and the version in its file. The file's
// name is ambiguous: Intel MPI and every MPICH since version 3 call it libmpi.so.12. Thread: any.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Identifies a library by its constants: "Open MPI 5.0.11", "MPICH 4.0.2", "Intel MPI 2021.18.1",
// "MVAPICH". Omits the version if the constants contain none or several. Returns an empty string if
// it is not an MPI library. Pure.
std::string mpi_text(std::string_view constants);

// Applies mpi_text() to the start of the file's constants; empty also if the file cannot be read.
std::string mpi_text_of_file(const std::string& path);

// Returns the MPI libraries that the process has mapped, in the order of their addresses, as paths
// that are valid in this process's namespace. Blocks while the process changes its mappings.
std::vector<std::string> mapped_mpi_libraries(pid_t pid);

}  // namespace ivy
