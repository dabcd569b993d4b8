// Keeps connections out of the children of fork(). A connection ends when the last process that has
// it is gone, and by that end its peers learn that a rank has died; but a child that goes on
// without exec (a loader of data, say) has a copy of every descriptor. Those that are opened here
// are closed in such a child, not shut down: the parent's go on.
//
// Thread: any. A program that forks within exec's reach (posix_spawn, vfork) is not concerned.
#pragma once

#include <mutex>

namespace ivy::not_inherited {

// Guards a descriptor's making against a fork in the middle of it.
std::unique_lock<std::mutex> lock();
void add(int descriptor);  // lock() must be held since before it was made.

// Calls `make`, which returns a descriptor or a negative number, and returns that. `make` must not
// block.
template <class Make>
int open(Make make) {
  const std::unique_lock<std::mutex> guard = lock();
  const int descriptor = make();
  if (descriptor >= 0) add(descriptor);
  return descriptor;
}

// Closes any descriptor, whether or not it was added.
void close(int descriptor);

}  // namespace ivy::not_inherited
