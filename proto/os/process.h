// Requests of a process to the kernel for itself and its children. Thread: any.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ivy {

// A descriptor that becomes readable when the process has ended, closed on exec. -1: errno.
int open_pidfd(pid_t pid);
// Unblocks every signal. A runtime that starts programs from a thread with blocked signals (the
// JVM's, Julia's, Swift's) passes its mask on, and TERM would then do nothing. Call first in main.
void unblock_inherited_signals();
// Raises the soft limit of open files, which suits old programs, to the hard one.
void raise_descriptor_limit();
// The words of a command line or of an environment as exec takes them, with a null pointer behind.
// They point into `words`, which has to outlive them.
std::vector<char*> exec_words(const std::vector<std::string>& words);
// A variable of this process's environment; empty where it is not set.
std::string own_variable(const char* name);
// gethostname(); empty when it fails.
std::string own_host_name();

}  // namespace ivy
