// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/exit_order.h"

#include <sys/epoll.h>

#include <array>

namespace ivy {

ExitOrder::ExitOrder() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

void ExitOrder::watch(int pidfd, std::uint32_t worker) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u32 = worker;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd, &event);
}

std::vector<std::uint32_t> ExitOrder::take() {
  std::vector<std::uint32_t> ended;
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) ended.push_back(events[static_cast<std::size_t>(i)].data.u32);
    if (count < static_cast<int>(events.size())) return ended;
  }
}

}  // namespace ivy
