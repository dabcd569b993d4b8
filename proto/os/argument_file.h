// SPDX-License-Identifier: Apache-2.0
// Arguments of a child process that grow with the number of hosts. The kernel limits one argument
// to 128 KiB, so such lists are passed in an inherited in-memory file. Thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The child's option that names the descriptor; always the last one on its command line.
inline constexpr std::string_view kArgumentsFd = "--arguments-fd";

// Returns an empty descriptor and sets errno if the system is out of memory or descriptors.
Descriptor make_argument_file(const std::vector<std::string>& arguments);

// Returns the arguments, followed by those in the file that kArgumentsFd names. Closes the file.
Result<std::vector<std::string>> with_argument_file(int argc, char** argv);

}  // namespace ivy
