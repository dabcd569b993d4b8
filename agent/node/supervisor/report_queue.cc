// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/report_queue.h"

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <chrono>

#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::chrono::milliseconds kBatchPause{10};

}  // namespace

void ReportQueue::push(comm_status::PageReport report) {
  const bool is_known = std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other.communicator == report.communicator;
  });
  if (!is_known && waiting_.size() < kWaitingMax) waiting_.push_back(std::move(report));
}

std::vector<comm_status::PageReport> ReportQueue::take_due(std::uint64_t now_ns) {
  const std::uint64_t earned = (now_ns - earned_at_ns_) / kNanosPerReport;
  left_ = std::min<std::uint64_t>(kBurst, left_ + earned);
  // Time that has not yet earned a whole report is kept for the next call.
  earned_at_ns_ += earned * kNanosPerReport;
  std::vector<comm_status::PageReport> due;
  for (; left_ > 0 && !waiting_.empty(); --left_) {
    due.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return due;
}

void ReportQueues::begin(std::size_t workers) {
  queues_.assign(workers, ReportQueue());
  timer_.cancel();
  is_waiting_ = false;
}

void ReportQueues::push(std::size_t worker, comm_status::PageReport report) {
  queues_[worker].push(std::move(report));
  if (!is_waiting_) send_due();
}

void ReportQueues::send_due() {
  Reports due;
  is_waiting_ = false;
  for (ReportQueue& queue : queues_) {
    for (comm_status::PageReport& report : queue.take_due(monotonic_ns()))
      due.push_back(std::move(report));
    is_waiting_ |= !queue.is_empty();
  }
  due_(due);
  if (!is_waiting_) return;
  timer_.expires_after(kBatchPause);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) send_due();
  });
}

}  // namespace ivy
