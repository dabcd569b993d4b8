// SPDX-License-Identifier: Apache-2.0
// The command line of a Python interpreter: where its options end and its program begins. Pure;
// thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Returns true if `program` has the name of an interpreter: python, python3, python3.12.
bool is_python_name(std::string_view program);

// Returns the interpreter and its options, without the program (a file, or -m, or -c) and its
// arguments. Returns an error, which completes "its workers ...", if the command runs no Python
// program, or if the interpreter would not import `sitecustomize` from PYTHONPATH.
Result<std::vector<std::string>> python_options(const std::vector<std::string>& arguments);

}  // namespace ivy
