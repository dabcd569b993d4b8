// SPDX-License-Identifier: Apache-2.0
// The command line that the process list shows, for a process that continues as another program
// without exec. Thread: the main one, while there is no other.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Call it first in main with its argv: the title is written over the original arguments and
// environment.
void keep_title_place(char** argv);

// Makes the process list show these arguments, cut to the available space. Overwrites the strings
// of argv, and as many of the environment as needed; `environ` stays valid. Does nothing without
// keep_title_place().
void set_process_title(const std::vector<std::string>& words);

}  // namespace ivy
