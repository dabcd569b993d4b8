// SPDX-License-Identifier: Apache-2.0
// Carries out how this host's part of a job ends: asks Ending, which is pure, what to do next, and
// again whenever a fact has changed or its time has come. Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "agent/node/workers/ending.h"

namespace ivy {

class StopProgress {
 public:
  struct Handlers {
    // Says how far workers and output have got.
    std::function<EndingFacts()> facts;
    // Whether the containment is proved to be empty. Not asked again once it is.
    std::function<bool()> is_empty;
    std::function<void(EndingAction)> perform;
  };

  StopProgress(boost::asio::io_context& loop, Handlers handlers)
      : loop_(loop), handlers_(std::move(handlers)), timer_(loop) {}

  const Ending& ending() const { return ending_; }
  void workers_started();
  // Another generation is about to start. Only after the report.
  void begin_again();
  // Both as in Ending, from now on.
  void order_stop(std::uint64_t grace_ns, std::uint64_t warning_ns);
  void order_interrupt(std::uint64_t grace_ns);
  // A fact may have changed: checks in a later turn, since the check may end workers' streams,
  // which asks for a check again.
  void check_soon();
  // Why this host had to stop, for the report: the first reason counts.
  void give_reason(const std::string& reason);
  const std::string& reason() const { return reason_; }

 private:
  void check();
  EndingFacts facts();

  boost::asio::io_context& loop_;
  const Handlers handlers_;
  Ending ending_;
  boost::asio::steady_timer timer_;
  std::string reason_;
  bool is_proved_empty_ = false;
  bool is_check_posted_ = false;
};

}  // namespace ivy
