// SPDX-License-Identifier: Apache-2.0
// Additional checks of a host for `ivyrun --doctor`. They start Python, which takes up to 4 s, so
// they run only on hosts without workers. Thread: any.
#pragma once

#include <string>

#include "proto/wire/job.pb.h"

namespace ivy {

// Returns "glibc 2.36" for the contents of a C library's file; empty if it contains no version.
// Pure.
std::string c_library_version(const std::string& file);

// Adds the free space of the directory's file system and of /dev/shm. May block.
void add_space(const std::string& directory, HostCheckup& health);

// Fills in `health`, and the version that the interpreter reports. `facts` contains the interpreter
// and the state of the working directory.
void examine_host(const Hello& hello, HostFacts& facts);

}  // namespace ivy
