// In which order workers have ended. Whoever looks a moment later finds them all ended, and waitid
// names them in the order of their birth; the kernel's ready list of an epoll has them in the order
// in which they ended. Thread: the loop's.
#pragma once

#include <cstdint>
#include <vector>

namespace ivy {

class ExitOrder {
 public:
  ExitOrder();
  ~ExitOrder();
  ExitOrder(const ExitOrder&) = delete;
  ExitOrder& operator=(const ExitOrder&) = delete;

  // Watches a pidfd, which stays the caller's.
  void watch(int pidfd, std::uint32_t worker);
  // Those that have ended since the last call, the first first.
  std::vector<std::uint32_t> take();

 private:
  int epoll_ = -1;  // -1: there is none, and nobody knows better than the caller.
};

}  // namespace ivy
