// SPDX-License-Identifier: Apache-2.0
#include "agent/node/segments/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "proto/os/descriptor.h"

namespace ivy {
namespace {

// From Linux 6.3. If the administrator requires it (vm.memfd_noexec), nothing else is allowed.
constexpr unsigned kNoExecSeal = 8;

int make_memory_descriptor(const std::string& name) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(name.c_str(), flags | kNoExecSeal);
  return fd < 0 && errno == EINVAL ? memfd_create(name.c_str(), flags) : fd;
}

}  // namespace

Result<int> make_shared_memory(const std::string& name, std::uint64_t bytes) {
  Descriptor fd(make_memory_descriptor(name));
  if (!fd) return errno_error(Code::kUnavailable, "shared memory", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return errno_error(Code::kResourceExhausted,
                       "shared memory of " + std::to_string(bytes) + " bytes", errno);
  return fd.release();
}

int reserve_shared_memory(int fd, std::uint64_t from, std::uint64_t bytes) {
  int result = 0;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

void wake_futex(void* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace ivy
