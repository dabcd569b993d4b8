// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/supervisor_signals.h"

#include <boost/system/error_code.hpp>
#include <utility>

#include "proto/contract/limits.h"
#include "proto/os/clock.h"

namespace ivy {

using boost::system::error_code;

SupervisorSignals::SupervisorSignals(boost::asio::io_context& loop, std::function<void(int)> signal)
    : loop_(loop), signal_(std::move(signal)), signals_(loop, SIGCHLD, SIGTERM, SIGUSR1) {
  wait_signal();
}

void SupervisorSignals::wait_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    signal_(signal);
    wait_signal();
  });
}

void SupervisorSignals::watch(int pidfd, std::function<void()> lost) {
  if (pidfd < 0) return;
  processes_.emplace_back(loop_, pidfd);
  processes_.back().async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [lost = std::move(lost)](const error_code& error) {
                                 if (!error) lost();
                               });
}

Ticker::Ticker(boost::asio::io_context& loop, Tick tick)
    : timer_(loop), tick_(std::move(tick)), began_ns_(monotonic_ns()), last_ns_(began_ns_) {}

void Ticker::begin() {
  timer_.expires_after(kSupervisorTick);
  timer_.async_wait([this](const error_code& error) {
    if (error) return;
    ++count_;
    const std::uint64_t now_ns = monotonic_ns();
    tick_(now_ns, now_ns - std::exchange(last_ns_, now_ns));
    begin();
  });
}

}  // namespace ivy
