// SPDX-License-Identifier: Apache-2.0
// Reports which of many sockets can be read or written. It has one epoll set for all of them, and
// the loop watches the set's descriptor. Asio would register a socket with the kernel again after
// every request; this set does so only when the wanted events change. Linux.
//
// Not thread-safe. Lifetime: remove a socket before closing it, because the set keeps watching it
// if another process also has it (it was received from that process, or a process was forked).
// Events that take() has returned may still refer to a removed socket, so its owner must live until
// the next call.
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
    bool broken = false;  // Both directions are closed.
  };

  Readiness();  // Aborts if the system has no descriptor left.

  int descriptor() const { return set_.get(); }
  // Returns false if the kernel cannot watch more sockets.
  bool add(int fd, void* owner, Wanted wanted) const;
  void change(int fd, void* owner, Wanted wanted) const;
  // Stops watching a socket. Otherwise a broken socket is reported even if no event is wanted.
  void remove(int fd) const;
  // Returns the sockets that are ready now, without blocking; few enough that a turn stays
  // short.
  std::vector<Event>& take();

 private:
  const Descriptor set_;
  std::vector<Event> events_;
};

}  // namespace ivy::store
