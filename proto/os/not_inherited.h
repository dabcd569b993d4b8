// SPDX-License-Identifier: Apache-2.0
// Keeps connections out of the children of fork(). Peers detect a rank's death by the end of its
// connections, but a connection closes only when the last process that holds it has exited, and a
// child that continues without exec (such as a data loader) has a copy of every descriptor.
// Descriptors opened through this module are closed in such a child, not shut down: the parent's
// remain usable.
//
// Thread: any. Children that exec immediately (posix_spawn, vfork) are not affected.
#pragma once

#include <mutex>

namespace ivy::not_inherited {

// Guards the creation of a descriptor against a concurrent fork.
std::unique_lock<std::mutex> lock();
void add(int descriptor);  // Requires that lock() was held when the descriptor was created.

// Calls `make`, which returns a descriptor or a negative number, and returns its result. `make`
// must not block.
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
