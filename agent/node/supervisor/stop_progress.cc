// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/stop_progress.h"

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>

#include "proto/os/clock.h"

namespace ivy {

void StopProgress::workers_started() {
  ending_.workers_started();
  check_soon();
}

void StopProgress::begin_again() {
  ending_.begin_again();
  timer_.cancel();
  is_proved_empty_ = false;
}

void StopProgress::order_stop(std::uint64_t grace_ns, std::uint64_t warning_ns) {
  ending_.order_stop(grace_ns, monotonic_ns(), warning_ns);
  check_soon();
}

void StopProgress::order_interrupt(std::uint64_t grace_ns) {
  ending_.order_interrupt(grace_ns, monotonic_ns());
  check_soon();
}

void StopProgress::give_reason(const std::string& reason) {
  if (reason_.empty()) reason_ = reason;
}

void StopProgress::check_soon() {
  if (std::exchange(is_check_posted_, true)) return;
  boost::asio::post(loop_, [this] {
    is_check_posted_ = false;
    check();
  });
}

EndingFacts StopProgress::facts() {
  EndingFacts facts = handlers_.facts();
  if (facts.workers_ended && !is_proved_empty_ && ending_.phase() != EndingPhase::kIdle)
    is_proved_empty_ = handlers_.is_empty();
  facts.empty = is_proved_empty_;
  return facts;
}

void StopProgress::check() {
  for (;;) {
    const EndingStep step = ending_.advance(facts(), monotonic_ns());
    if (step.action != EndingAction::kNothing) {
      handlers_.perform(step.action);
      continue;
    }
    if (!step.again_ns) return;
    timer_.expires_after(std::chrono::nanoseconds(*step.again_ns));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) check_soon();
    });
    return;
  }
}

}  // namespace ivy
