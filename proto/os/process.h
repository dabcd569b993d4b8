// SPDX-License-Identifier: Apache-2.0
// Kernel settings and queries for this process and its children. Thread: any.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ivy {

// Returns a close-on-exec descriptor that becomes readable when the process exits. On failure
// returns -1 and sets errno. The kernel may make it readable some milliseconds before waitid() can
// reap the process (seen on Linux 6.18). A caller that reaps with WNOHANG must therefore try again
// after kReapPause.
int open_pidfd(pid_t pid);
constexpr std::chrono::milliseconds kReapPause{1};
// Unblocks every signal. A runtime that starts programs from a thread with blocked signals (JVM,
// Julia, Swift) passes its mask on, and TERM would have no effect. Call it first in main.
void unblock_inherited_signals();
// Raises the soft limit of open files, which is low for the sake of old programs, to the hard
// limit.
void raise_descriptor_limit();
// Returns arguments or an environment in exec's form, terminated by a null pointer. The pointers
// refer to `words`, which must outlive them.
std::vector<char*> exec_array(const std::vector<std::string>& words);
// Returns a variable of this process's environment, or an empty text if it is not set.
std::string own_variable(const char* name);
// Returns the result of gethostname(), or an empty text if it fails.
std::string own_host_name();

}  // namespace ivy
