// SPDX-License-Identifier: Apache-2.0
// Owners of a file descriptor and of an open directory, and pairs of connected descriptors. Not
// thread-safe.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

namespace ivy {

class Descriptor {
 public:
  // A negative number, such as a failed call's -1, means no descriptor.
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Transfers ownership to the caller.
  int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor. errno is preserved only if close() succeeds, so read it first.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using OpenDirectory = std::unique_ptr<DIR, CloseDirectory>;

// Two connected, close-on-exec descriptors. Both are empty, and errno is set, if the system call
// failed.
struct DescriptorPair {
  Descriptor first{};
  Descriptor second{};
  explicit operator bool() const { return static_cast<bool>(first); }
};

// Makes a pipe: data written to `second` is read from `first`.
inline DescriptorPair make_pipe(int flags = 0) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) return {};
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

inline DescriptorPair make_stream_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return {};
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace ivy
