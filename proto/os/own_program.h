// Where the programs of this build lie: all in one directory, on this host and in a bundle that was
// sent to another. Thread: any.
#pragma once

#include <string>

namespace ivy {

// The directory of the running program; empty when the program's file was removed.
std::string program_directory();

// Reads the file of a running ivy-node whole, so that its pages are in memory and no later step
// waits for the file system. Waits for the file system now. Does nothing in other programs.
void read_own_program();

// What to start for a role of the node binary: the running program if it is that (its file may have
// been removed since), else the file beside it.
std::string node_program();

}  // namespace ivy
