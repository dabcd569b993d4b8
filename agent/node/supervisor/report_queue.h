// SPDX-License-Identifier: Apache-2.0
// The reports of this host's workers on their way to the other ranks: of each worker a burst at
// once, then so many a second, so that a worker which reports without end burdens nobody else.
// Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "proto/wire/status_page.h"

namespace ivy {

// One worker's. Pure; time is given.
class ReportQueue {
 public:
  static constexpr std::uint32_t kBurst = 64;
  static constexpr std::uint64_t kNanosPerReport = 2'000'000;
  // One report per communicator; reports of further communicators are dropped while so many wait.
  static constexpr std::size_t kWaitingMax = 1024;

  // A communicator has one reason to be broken: a second report of one that waits is dropped.
  void push(comm_status::PageReport report);
  // Removes and returns the reports that are due, in their order.
  std::vector<comm_status::PageReport> take_due(std::uint64_t now_ns);
  bool is_empty() const { return waiting_.empty(); }

 private:
  std::deque<comm_status::PageReport> waiting_;
  std::uint64_t left_ = kBurst;  // Reports that may still be sent without delay.
  std::uint64_t earned_at_ns_ = 0;
};

// All workers'. Reports that had to wait go out in batches.
class ReportQueues {
 public:
  using Reports = std::vector<comm_status::PageReport>;
  ReportQueues(boost::asio::io_context& loop, std::function<void(const Reports&)> due)
      : due_(std::move(due)), timer_(loop) {}

  // Drops all reports, and makes room for that many workers.
  void begin(std::size_t workers);
  void push(std::size_t worker, comm_status::PageReport report);

 private:
  void send_due();

  const std::function<void(const Reports&)> due_;
  std::vector<ReportQueue> queues_;
  boost::asio::steady_timer timer_;
  bool is_waiting_ = false;
};

}  // namespace ivy
