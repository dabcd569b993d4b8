// Where the programs of this build lie: all in one directory, on this host and in a bundle that was
// sent to another. Thread: any.
#pragma once

#include <string>

namespace ivy {

// The directory of the running program; empty when the program's file was removed.
std::string program_directory();

// Reads the running program's file whole, so that its pages are in memory: a later step of it does
// not wait for the file system. Waits for the file system now.
void read_own_program();

// What to start for a role of the node binary: the running program if it is that (its file may have
// been removed since), else the file beside it.
std::string node_program();

}  // namespace ivy
