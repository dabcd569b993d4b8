// SPDX-License-Identifier: Apache-2.0
// Events that reach a supervisor from sources other than its launcher: signals, processes whose
// exit ends it, and the clock. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>

namespace ivy {

// Signals, and processes that are watched.
class SupervisorSignals {
 public:
  // `signal` is called for SIGCHLD, SIGTERM and SIGUSR1.
  SupervisorSignals(boost::asio::io_context& loop, std::function<void(int)> signal);
  // Calls `lost` when the process has ended. Becomes the owner of its pidfd; a negative one is
  // ignored.
  void watch(int pidfd, std::function<void()> lost);

 private:
  void wait_signal();

  boost::asio::io_context& loop_;
  const std::function<void(int)> signal_;
  boost::asio::signal_set signals_;
  std::deque<boost::asio::posix::stream_descriptor> processes_;
};

// Calls `tick` once every kSupervisorTick.
class Ticker {
 public:
  using Tick = std::function<void(std::uint64_t now_ns, std::uint64_t elapsed_ns)>;
  Ticker(boost::asio::io_context& loop, Tick tick);
  void begin();
  int count() const { return count_; }
  std::uint64_t age_ns(std::uint64_t now_ns) const { return now_ns - began_ns_; }

 private:
  boost::asio::steady_timer timer_;
  const Tick tick_;
  const std::uint64_t began_ns_;
  std::uint64_t last_ns_;
  int count_ = 0;
};

}  // namespace ivy
