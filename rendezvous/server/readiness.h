// Which of many sockets can be read or written: one set for all of them, which a loop watches by
// its one descriptor. Asio would ask the kernel to watch a socket anew after every request; a set
// of our own is asked once for as long as nothing else is wanted of the socket. Linux.
//
// Thread: one at a time. Lifetime: a socket that is closed leaves the set by itself; what take()
// has returned before may still name it, so its owner lives until the next call.
#pragma once

#include <cstdint>
#include <vector>

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
    bool broken = false;  // Both directions: nobody is there any more.
  };

  Readiness();  // Aborts when the system has no descriptor left.
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  int descriptor() const { return set_; }
  // False: the kernel will not watch one more.
  bool add(int fd, void* owner, Wanted wanted) const;
  void change(int fd, void* owner, Wanted wanted) const;
  // A broken socket is reported whether or not anything is wanted of it; this ends that.
  void remove(int fd) const;
  // What is ready now, at most so many that a turn is short; without waiting.
  std::vector<Event>& take();

 private:
  int set_;
  std::vector<Event> events_;
};

}  // namespace ivy::store
