// SPDX-License-Identifier: Apache-2.0
#include "agent/node/workers/ending.h"

#include <algorithm>

#include "proto/contract/status.h"

namespace ivy {

void Ending::workers_started(std::uint64_t linger_ns) {
  linger_ns_ = linger_ns;
  if (phase_ == EndingPhase::kIdle) phase_ = EndingPhase::kRunning;
}

std::optional<Ending::Linger> Ending::linger() const {
  if (!lingers_ || phase_ != EndingPhase::kRunning) return std::nullopt;
  return Linger{workers_ended_ns_, workers_ended_ns_ + linger_ns_};
}

void Ending::begin_again() {
  IVY_ASSERT(phase_ == EndingPhase::kReported);
  *this = Ending();
}

void Ending::order_stop(std::uint64_t grace_ns, std::uint64_t now_ns, std::uint64_t warning_ns) {
  if (phase_ == EndingPhase::kReported || phase_ == EndingPhase::kKilling) return;
  const bool first = !stopping();
  if (first) phase_ = EndingPhase::kOrdered;
  // No warning without a grace period.
  if (grace_ns == 0) warning_ns = 0;
  keep_times(first, now_ns + warning_ns, now_ns + warning_ns + grace_ns);
}

void Ending::order_interrupt(std::uint64_t grace_ns, std::uint64_t now_ns) {
  const bool first = phase_ == EndingPhase::kRunning;
  if (!first || grace_ns == 0) return order_stop(grace_ns, now_ns);
  phase_ = EndingPhase::kOrdered;
  begins_with_interrupt_ = true;
  keep_times(true, now_ns + std::min(kInterruptNs, grace_ns / 2), now_ns + grace_ns);
}

void Ending::keep_times(bool first, std::uint64_t terminate_at_ns, std::uint64_t kill_at_ns) {
  terminate_at_ns_ = first ? terminate_at_ns : std::min(terminate_at_ns_, terminate_at_ns);
  kill_at_ns_ = first ? kill_at_ns : std::min(kill_at_ns_, kill_at_ns);
}

EndingStep Ending::enter_killing(std::uint64_t now_ns) {
  phase_ = EndingPhase::kKilling;
  kill_since_ns_ = std::max<std::uint64_t>(now_ns, 1);
  next_kill_ns_ = now_ns + kKillPauseNs;
  return {EndingAction::kKill, 0};
}

EndingStep Ending::keep_killing(std::uint64_t now_ns) {
  if (now_ns - kill_since_ns_ >= kUnkillableNs) {
    phase_ = EndingPhase::kReported;
    return {EndingAction::kReportLeftovers, std::nullopt};
  }
  if (now_ns < next_kill_ns_) return {EndingAction::kNothing, next_kill_ns_ - now_ns};
  next_kill_ns_ = now_ns + kKillPauseNs;
  return {EndingAction::kKill, 0};
}

// Stops processes of the job that still run after all workers have exited by themselves.
EndingStep Ending::terminate_leftovers(const EndingFacts& facts, std::uint64_t now_ns) {
  if (!facts.workers_ended) workers_ended_ns_ = 0;
  if (!facts.workers_ended) return {};
  if (workers_ended_ns_ == 0) workers_ended_ns_ = now_ns;
  const std::uint64_t waited_ns = now_ns - workers_ended_ns_;
  if (waited_ns < kLeaveNs)
    return {EndingAction::kNothing, std::min(kLeavePollNs, kLeaveNs - waited_ns)};
  lingers_ = facts.have_succeeded && waited_ns < linger_ns_;
  if (lingers_) return {EndingAction::kNothing, std::min(kLingerPollNs, linger_ns_ - waited_ns)};
  phase_ = EndingPhase::kTerminating;
  kill_at_ns_ = now_ns + kLeftoverGraceNs;
  return {EndingAction::kTerminateLeftovers, 0};
}

EndingStep Ending::advance(const EndingFacts& facts, std::uint64_t now_ns) {
  if (phase_ == EndingPhase::kIdle || phase_ == EndingPhase::kReported) return {};
  if (facts.workers_ended && facts.empty) {
    if (!facts.has_all_output) return {};
    phase_ = EndingPhase::kReported;
    return {EndingAction::kReportClean, std::nullopt};
  }
  switch (phase_) {
    case EndingPhase::kRunning:
      return terminate_leftovers(facts, now_ns);
    case EndingPhase::kOrdered:
      if (now_ns >= kill_at_ns_) return enter_killing(now_ns);
      if (now_ns < terminate_at_ns_ && !facts.workers_ended) {
        phase_ = EndingPhase::kWarned;
        return {
            begins_with_interrupt_ ? EndingAction::kInterrupt : EndingAction::kTerminateUninformed,
            0};
      }
      phase_ = EndingPhase::kTerminating;
      return {EndingAction::kTerminate, 0};
    case EndingPhase::kWarned:
      if (now_ns >= kill_at_ns_) return enter_killing(now_ns);
      if (now_ns < terminate_at_ns_ && !facts.workers_ended)
        return {EndingAction::kNothing, terminate_at_ns_ - now_ns};
      phase_ = EndingPhase::kTerminating;
      return {EndingAction::kTerminate, 0};
    case EndingPhase::kTerminating:
      if (now_ns >= kill_at_ns_) return enter_killing(now_ns);
      return {EndingAction::kNothing, kill_at_ns_ - now_ns};
    case EndingPhase::kKilling:
      return keep_killing(now_ns);
    case EndingPhase::kIdle:
    case EndingPhase::kReported:
      break;
  }
  return {};
}

}  // namespace ivy
