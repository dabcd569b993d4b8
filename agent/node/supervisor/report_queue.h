// The reports of one worker on their way to the other ranks: a burst at once, then so many a
// second, so that a worker which reports without end burdens nobody else. Pure; time is given.
// Thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "proto/wire/status_page.h"

namespace ivy {

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
  std::uint64_t left_ = kBurst;  // Reports that may be sent at once.
  std::uint64_t earned_at_ns_ = 0;
};

}  // namespace ivy
