// SPDX-License-Identifier: Apache-2.0
// Changes the command line in the process list, for a process that continues as another program
// without exec. Thread: the main one, before any other is started.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Remembers the memory of the original arguments and environment, which set_process_title()
// overwrites. Call it first in main.
void reserve_title_buffer(char** argv);

// Sets the command line in the process list to these arguments, cut to the available space.
// Overwrites the strings of argv and as many of the environment as needed; `environ` stays valid.
// Does nothing if reserve_title_buffer() was not called.
void set_process_title(const std::vector<std::string>& words);

}  // namespace ivy
