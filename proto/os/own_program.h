// SPDX-License-Identifier: Apache-2.0
// Locates the programs of this build, which are all in one directory, on this host and in a bundle
// sent to another host. Thread: any.
#pragma once

#include <string>

namespace ivy {

// Returns the directory of the running program, or an empty path if the program's file was removed.
std::string program_directory();

// Reads the whole file of a running ivy-node, so that its pages are in memory and no later step
// waits for the file system. May block. Does nothing in other programs.
void read_own_program();

// Returns the program for a role of the node binary: the running program if it is that binary (its
// file may have been removed since), otherwise the file in the same directory.
std::string node_program();

}  // namespace ivy
