// Connections that a child of fork() must not keep. A connection ends when the last process that
// has it is gone, and by that end others know that a rank has died; but a child that goes on
// without exec (a loader of data, say) has a copy of every descriptor. Those that are opened here
// are closed in such a child, not shut down: the parent's go on.
//
// Thread: any. A program that forks within exec's reach (posix_spawn, vfork) is not concerned.
#pragma once

#include <mutex>

namespace ivy::not_inherited {

// Guards a descriptor's making against a fork in the middle of it.
std::unique_lock<std::mutex> lock();
void add(int descriptor);  // Under lock().

// What `make` returns, a descriptor or a negative number. It must not wait.
template <class Make>
int open(Make make) {
  const std::unique_lock<std::mutex> guard = lock();
  const int descriptor = make();
  if (descriptor >= 0) add(descriptor);
  return descriptor;
}

// Of any descriptor.
void close(int descriptor);

}  // namespace ivy::not_inherited
