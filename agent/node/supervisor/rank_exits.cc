// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/rank_exits.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "agent/node/workers/lease.h"
#include "proto/os/clock.h"

namespace ivy {

RankExits::RankExits(boost::asio::io_context& loop, DeviceWatch& devices, Handlers handlers)
    : loop_(loop), devices_(devices), handlers_(std::move(handlers)), timer_(loop) {}

void RankExits::begin(const HostPlan& plan) {
  timer_.cancel();
  generation_ = plan.generation();
  goes_on_ = plan.on_failure() != FAILURE_ENDS_ALL;
  replacements_.begin(plan.on_failure() == FAILURE_IS_REPLACED);
  awaiting_devices_.clear();
}

void RankExits::ended(std::uint32_t rank, std::uint32_t rejoins, const ExitStatus& status) {
  if (!goes_on_) return;
  handlers_.tell_store(rank, rejoins);
  if (!status.success()) replacements_.failed(rank);
}

void RankExits::order(const ReplaceWorker& request) {
  if (request.generation() != generation_) return;
  if (request.forgo()) {
    replacements_.forgo(request.rank());
    return handlers_.changed();
  }
  const std::uint64_t due_ns = monotonic_ns() + request.pause_ms() * kNanosPerMilli;
  if (!replacements_.order({request.rank(), request.rejoins(), due_ns}))
    return handlers_.refuse(request.rank());
  check_soon();
}

void RankExits::check_soon() {
  if (!replacements_.awaits() || std::exchange(is_check_posted_, true)) return;
  boost::asio::post(loop_, [this] {
    is_check_posted_ = false;
    check();
  });
}

void RankExits::check() {
  const std::uint64_t now_ns = monotonic_ns();
  for (const Replacements::Ordered& due : replacements_.take_due(now_ns, handlers_.is_over))
    await_devices(due);
  // One that could not be started is not awaited any more.
  handlers_.changed();
  const auto next_ns = replacements_.next_due_ns();
  // One whose time has come waits for the rest of its last process's output: see check_soon().
  if (!next_ns || *next_ns <= now_ns) return;
  timer_.expires_after(std::chrono::nanoseconds(*next_ns - now_ns));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) check();
  });
}

void RankExits::await_devices(const Replacements::Ordered& due) {
  std::vector<std::string> devices = handlers_.own_devices(due.rank);
  if (devices.empty()) return handlers_.start(due.rank, due.rejoins);
  awaiting_devices_.insert(due.rank);
  devices_.await_memory({"rank " + std::to_string(due.rank), std::move(devices),
                         [this, due] {
                           awaiting_devices_.erase(due.rank);
                           handlers_.start(due.rank, due.rejoins);
                           handlers_.changed();
                         },
                         [this, due] {
                           awaiting_devices_.erase(due.rank);
                           handlers_.refuse(due.rank);
                         }});
}

void RankExits::give_up() {
  timer_.cancel();
  for (const std::uint32_t rank : replacements_.give_up()) handlers_.refuse(rank);
}

}  // namespace ivy
