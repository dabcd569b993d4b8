// The reports of one worker on their way to the other ranks: some at once, then so many a second,
// so that a worker which reports without end burdens nobody else. Pure; time is given. Thread: the
// loop's.
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
  // Of as many communicators; a worker in which more break while these wait is not heard.
  static constexpr std::size_t kWaitingMax = 1024;

  // A communicator has one reason to be broken: later reports of one that waits say nothing new.
  void push(comm_status::PageReport report);
  // Those whose turn has come, in their order.
  std::vector<comm_status::PageReport> take_due(std::uint64_t now_ns);
  bool is_empty() const { return waiting_.empty(); }

 private:
  std::deque<comm_status::PageReport> waiting_;
  std::uint64_t left_ = kBurst;  // That may be told at once.
  std::uint64_t earned_at_ns_ = 0;
};

}  // namespace ivy
