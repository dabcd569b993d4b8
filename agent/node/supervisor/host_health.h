// SPDX-License-Identifier: Apache-2.0
// Additional checks of a host for `ivyrun --doctor`. They take as long as a start of Python, at
// most 4 s: for hosts on which no job runs. Thread: any.
#pragma once

#include <string>

#include "proto/wire/job.pb.h"

namespace ivy {

// "glibc 2.36" of the text of a C library's file; empty: it names no version. Pure.
std::string c_library_version(const std::string& file);

// Fills in `health`, and the interpreter's version as it says it itself. `facts` has the
// interpreter and the working directory's state.
void examine_host(const Hello& hello, HostFacts& facts);

}  // namespace ivy
