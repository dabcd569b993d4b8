// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ivy {

Error errno_error(Code code, const std::string& what, int errno_value) {
  return Error{code, what + ": " + std::strerror(errno_value)};
}

const Error& Result<void>::error() const {
  IVY_ASSERT(error_.has_value());
  return *error_;
}

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "ivyrun: bug: assertion failed: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace ivy
