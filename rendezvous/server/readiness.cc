// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/readiness.h"

#include <sys/epoll.h>

#include <array>

#include "proto/contract/status.h"

namespace ivy::store {
namespace {

constexpr std::size_t kEventsPerTurn = 64;

epoll_event event_of(void* owner, Wanted wanted) {
  epoll_event event{};
  if (wanted.read) event.events |= EPOLLIN;
  if (wanted.write) event.events |= EPOLLOUT;
  event.data.ptr = owner;
  return event;
}

}  // namespace

Readiness::Readiness() : set_(epoll_create1(EPOLL_CLOEXEC)) {
  IVY_ASSERT(static_cast<bool>(set_));
  events_.reserve(kEventsPerTurn);
}

bool Readiness::add(int fd, void* owner, Wanted wanted) const {
  epoll_event event = event_of(owner, wanted);
  return epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Readiness::change(int fd, void* owner, Wanted wanted) const {
  epoll_event event = event_of(owner, wanted);
  IVY_ASSERT(epoll_ctl(set_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Readiness::remove(int fd) const { epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<Readiness::Event>& Readiness::take() {
  std::array<epoll_event, kEventsPerTurn> ready;
  const int count = epoll_wait(set_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  events_.clear();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    events_.push_back({event.data.ptr, (event.events & EPOLLIN) != 0,
                       (event.events & EPOLLOUT) != 0,
                       (event.events & (EPOLLERR | EPOLLHUP)) != 0});
  }
  return events_;
}

}  // namespace ivy::store
