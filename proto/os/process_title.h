// What the process list shows as a process's words. For a process that goes on as another program
// without starting one. Thread: the main one, while there is no other.
#pragma once

#include <string>
#include <vector>

namespace ivy {

// Call it first in main with its argv: the title is written where the kernel put the words and the
// environment of the start.
void keep_title_place(char** argv);

// From now on the process list shows these words, cut to the space there is. The strings of argv
// are overwritten, and as many of the environment's as it takes; `environ` stays valid. Does
// nothing without keep_title_place().
void set_process_title(const std::vector<std::string>& words);

}  // namespace ivy
