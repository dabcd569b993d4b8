// SPDX-License-Identifier: Apache-2.0
// Substitutes for calls that old kernels lack or old seccomp profiles forbid. Such profiles (Docker
// before 20.10, some sandboxes) fail unknown calls with EPERM instead of ENOSYS. Thread: any.
#pragma once

#include <string>

#include "proto/contract/status.h"

namespace ivy {

// Checks a path as access() does, but with the effective user and group, even if faccessat2() is
// forbidden. Returns 0 or an errno.
int effective_access(const std::string& path, int mode);

// Returns an error such as "watch ivy-node: Operation not permitted", with a fix for a missing
// pidfd_open(), which has no older substitute. `error` is the errno of open_pidfd().
Error pidfd_error(const std::string& what, int error);

// Returns the fix for a seccomp profile that forbids clone3(), with which the C library starts
// threads and programs; the library falls back to the older call only after ENOSYS. Returns an
// empty text if clone3() is allowed.
std::string clone_fix();

}  // namespace ivy
