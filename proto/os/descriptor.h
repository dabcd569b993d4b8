// The owner of a file descriptor: closes it at its end. Thread: one at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace ivy {

class Descriptor {
 public:
  // A negative number, such as the -1 of a call that failed, is owned as "none".
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // The caller owns it from now on.
  int release() { return std::exchange(fd_, -1); }
  // Closes what it owns. An errno that the caller still wants to read stays as it is only if the
  // close succeeds, so read it first.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

}  // namespace ivy
