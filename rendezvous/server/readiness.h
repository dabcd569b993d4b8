// SPDX-License-Identifier: Apache-2.0
// Tells which of many sockets can be read or written: one epoll set for all of them, which a loop
// watches by its one descriptor. Asio would ask the kernel to watch a socket anew after every
// request; a set of our own asks once for as long as the wanted events stay the same. Linux.
//
// Thread: one at a time. Lifetime: a socket is removed before it is closed, because the set watches
// it on where another process has it too (it came from there, or a process was forked meanwhile).
// Events that take() has returned before may still name it, so its owner lives until the next call.
#pragma once

#include <vector>

#include "proto/os/descriptor.h"

namespace ivy::store {

struct Wanted {
  bool read = false;
  bool write = false;
  bool operator==(const Wanted&) const = default;
};

class Readiness {
 public:
  struct Event {
    void* owner = nullptr;
    bool readable = false;
    bool writable = false;
    bool broken = false;  // Both directions are closed: the peer is gone.
  };

  Readiness();  // Aborts when the system has no descriptor left.

  int descriptor() const { return set_.get(); }
  // Returns false if the kernel cannot watch one more.
  bool add(int fd, void* owner, Wanted wanted) const;
  void change(int fd, void* owner, Wanted wanted) const;
  // Stops watching a socket; one that is broken is otherwise reported even if no event of it is
  // wanted.
  void remove(int fd) const;
  // Returns the sockets that are ready now, without blocking, and few enough that a turn stays
  // short.
  std::vector<Event>& take();

 private:
  const Descriptor set_;
  std::vector<Event> events_;
};

}  // namespace ivy::store
