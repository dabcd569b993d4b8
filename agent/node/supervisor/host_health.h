// What `ivyrun --doctor` asks of a host beyond its facts. Takes a few milliseconds, and seconds at
// most where a Python module is looked for: for hosts on which nothing runs. Thread: any.
#pragma once

#include <string>

#include "proto/wire/job.pb.h"

namespace ivy {

// "glibc 2.36" of the text of a C library's file; empty: it names no version. Pure.
std::string c_library_version(const std::string& file);

// `facts` has the interpreter and the working directory's state.
HostCheckup examine_host(const Hello& hello, const HostFacts& facts);

}  // namespace ivy
