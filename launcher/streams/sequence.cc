// SPDX-License-Identifier: Apache-2.0
#include "launcher/streams/sequence.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "proto/os/clock.h"

namespace ivy {
namespace asio = boost::asio;

void Sequence::start(Awaitable<void> steps) {
  running_ = std::make_shared<Sequence*>(this);
  auto spawn = [weak = std::weak_ptr(running_), steps = std::move(steps)]() mutable {
    const std::shared_ptr<Sequence*> self = weak.lock();
    if (!self) return;
    asio::co_spawn((*self)->loop_, std::move(steps), [](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
    });
  };
  asio::post(loop_, std::move(spawn));
}

void Sequence::stop() {
  stopped_ = true;
  running_.reset();
  waiting_.reset();
  timer_.cancel();
}

Awaitable<void> Sequence::notified(std::chrono::steady_clock::time_point deadline) {
  const auto keep = [this](const Arrival<Done>& arrive) { notify_ = arrive; };
  co_await wait_at_most<Done>(deadline - steady_now(), keep);
}

void Sequence::notify() {
  if (const Arrival<Done> resume = std::exchange(notify_, nullptr)) resume({});
}

Awaitable<void> Sequence::sleep(std::chrono::steady_clock::duration time) {
  const auto only_time = [](const Arrival<Done>&) {};
  co_await wait_at_most<Done>(time, only_time);
}

Awaitable<void> Sequence::turn() {
  const auto next_turn = [this](const Arrival<Done>& arrive) {
    asio::post(loop_, [arrive] { arrive({}); });
  };
  co_await wait<Done>(next_turn);
}

Awaitable<void> Sequence::checkpoint() {
  const auto never = [](const Arrival<Done>&) {};
  if (stopped_) co_await wait<Done>(never);
}

}  // namespace ivy
