// SPDX-License-Identifier: Apache-2.0
// How this host's part of a job ends, step by step: TERM, grace, KILL, proof, report. See "Ending"
// in agent/node/README.md. Pure: times and facts in, the next action out. Thread: any, one at a
// time.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/contract/limits.h"

namespace ivy {

enum class EndingPhase {
  kIdle,  // No worker was started yet.
  kRunning,
  kOrdered,      // A stop was ordered and TERM has not been sent yet.
  kWarned,       // INT was sent, or workers were told on the control socket; TERM follows.
  kTerminating,  // TERM was sent, the grace runs.
  kKilling,
  kReported,
};

struct EndingFacts {
  bool workers_ended = false;  // No worker's own process lives.
  bool empty = false;          // The containment is proved to be empty.
  bool output_queued = false;  // All output and all ends of streams are in the session.
};

enum class EndingAction {
  kNothing,
  kTerminate,            // CONT and TERM to everything.
  kTerminateLeftBehind,  // The same to processes that outlived workers which exited by themselves.
  kTerminateUninformed,  // The same to those who have not been told on the control socket.
  kInterrupt,            // CONT and INT to every worker's process group.
  kKill,                 // One pass of KILL over everything.
  kReportClean,
  kReportLeftovers,  // KILL did not end everything.
};

struct EndingStep {
  EndingAction action = EndingAction::kNothing;
  // Ask again after this long at the latest; nothing: when a fact changes.
  std::optional<std::uint64_t> again_ns;
};

class Ending {
 public:
  // Processes that exit this soon after the last worker, such as Python's resource tracker, do not
  // count as left behind. They are polled until then.
  static constexpr std::uint64_t kLeaveNs = 100'000'000;
  static constexpr std::uint64_t kLeavePollNs = 20'000'000;
  // Time from TERM to KILL for processes that outlive the last worker.
  static constexpr std::uint64_t kLeftoverGraceNs = 2'000'000'000;
  static constexpr std::uint64_t kKillPauseNs = 50'000'000;
  // From the abort epoch to TERM for workers on the control socket (design, section 7).
  static constexpr std::uint64_t kWarningNs = 1'000'000'000;
  // From INT to TERM after Ctrl-C; with a grace of less than two seconds, half of it.
  static constexpr std::uint64_t kInterruptNs = nanoseconds_of(kInterruptGrace);
  // A process that is here so long after KILL sleeps uninterruptibly: it is reported, not awaited.
  static constexpr std::uint64_t kUnkillableNs = nanoseconds_of(kUnkillableAfter);

  void workers_started();
  // Another generation is about to start. Only after kReported.
  void begin_again();
  // The first order starts the grace period; a later one may only shorten it. 0: KILL immediately.
  // warning_ns: workers that were notified on the control socket get TERM this much later; the
  // grace period starts then.
  void order_stop(std::uint64_t grace_ns, std::uint64_t now_ns, std::uint64_t warning_ns = 0);
  // The same for Ctrl-C: INT first, TERM kInterruptNs later, KILL at the end of the grace period,
  // which starts now.
  void order_interrupt(std::uint64_t grace_ns, std::uint64_t now_ns);
  // The next thing to do. Repeat until it says kNothing.
  EndingStep advance(const EndingFacts& facts, std::uint64_t now_ns);

  EndingPhase phase() const { return phase_; }
  bool stopping() const { return phase_ >= EndingPhase::kOrdered; }
  bool has_killed() const { return kill_since_ns_ != 0; }
  bool reported() const { return phase_ == EndingPhase::kReported; }

 private:
  EndingStep enter_killing(std::uint64_t now_ns);
  EndingStep keep_killing(std::uint64_t now_ns);
  EndingStep end_left_behind(const EndingFacts& facts, std::uint64_t now_ns);

  void keep_times(bool first, std::uint64_t terminate_at_ns, std::uint64_t kill_at_ns);

  EndingPhase phase_ = EndingPhase::kIdle;
  bool begins_with_interrupt_ = false;
  std::uint64_t workers_ended_ns_ = 0;  // In kRunning; 0: a worker runs.
  std::uint64_t kill_at_ns_ = 0;
  std::uint64_t terminate_at_ns_ = 0;
  std::uint64_t kill_since_ns_ = 0;
  std::uint64_t next_kill_ns_ = 0;
};

}  // namespace ivy
