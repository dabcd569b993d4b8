// SPDX-License-Identifier: Apache-2.0
#include "proto/os/old_kernels.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace ivy {

int effective_access(const std::string& path, int mode) {
  if (faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0) return 0;
  const int error = errno;
  // The C library falls back to the older call only after ENOSYS. A file never yields EPERM here.
  const bool is_same_user = geteuid() == getuid() && getegid() == getgid();
  if ((error == EPERM || error == ENOSYS) && is_same_user)
    return access(path.c_str(), mode) == 0 ? 0 : errno;
  return error;
}

Error pidfd_error(const std::string& what, int error) {
  Error failed = errno_error(Code::kFailedPrecondition, what, error);
  if (error == ENOSYS) failed.fix = "pidfd_open() is needed: Linux 5.3 or newer";
  if (error == EPERM)
    failed.fix =
        "a seccomp profile forbids pidfd_open(): update the container runtime (Docker 20.10 or "
        "newer), or allow the call in the profile";
  return failed;
}

std::string clone_fix() {
  // Arguments of this size are never valid, so nothing is started.
  if (syscall(SYS_clone3, nullptr, 0) != -1 || errno != EPERM) return {};
  return "a seccomp profile forbids clone3(): update the container runtime (Docker 20.10.10 or "
         "newer), or let the profile answer ENOSYS for calls that it does not know";
}

}  // namespace ivy
