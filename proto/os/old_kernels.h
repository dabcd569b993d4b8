// Calls that old kernels lack and old seccomp profiles forbid. Such profiles (Docker before 20.10,
// some sandboxes) answer EPERM for a call that they do not know, instead of ENOSYS. Thread: any.
#pragma once

#include <string>

#include "proto/contract/status.h"

namespace ivy {

// access() with the effective user and group, also where faccessat2() is forbidden. Returns 0 or an
// errno.
int effective_access(const std::string& path, int mode);

// "watch ivy-node: Operation not permitted", with what to do about a missing pidfd_open(), which
// has no older substitute. `error` is errno of open_pidfd().
Error pidfd_error(const std::string& what, int error);

// What to do about a seccomp profile that forbids clone3(), by which the C library starts threads
// and programs: it falls back to the older call for ENOSYS alone. Empty: clone3() is not forbidden.
std::string clone_fix();

}  // namespace ivy
