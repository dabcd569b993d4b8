// SPDX-License-Identifier: Apache-2.0
// Parses a worker's TORCHELASTIC_ERROR_FILE, in which a Python program leaves its exception:
// {"message": TEXT} or {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, ...}}}.
// Accepts a truncated file, because the worker may have died while it wrote. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>

namespace ivy {

struct ErrorFile {
  std::string message;    // "RuntimeError: boom"; the whole content if it is not JSON.
  std::string callstack;  // The Python traceback; may be empty.
};

ErrorFile read_error_file(std::string_view content);

}  // namespace ivy
