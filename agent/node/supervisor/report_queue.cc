#include "agent/node/supervisor/report_queue.h"

#include <algorithm>
#include <utility>

namespace ivy {

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

}  // namespace ivy
