// SPDX-License-Identifier: Apache-2.0
// The steps with which this host's part of a job ends: TERM, grace period, KILL, proof, report. See
// "Ending" in README.md here. Pure: takes times and facts, and returns the next action. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/contract/limits.h"

namespace ivy {

enum class EndingPhase {
  kIdle,  // No worker has been started yet.
  kRunning,
  kOrdered,      // A stop was ordered, but TERM has not been sent yet.
  kWarned,       // INT was sent, or workers were notified on the control socket; TERM follows.
  kTerminating,  // TERM was sent; the grace period runs.
  kKilling,
  kReported,
};

struct EndingFacts {
  bool workers_ended = false;   // No worker's process is alive.
  bool have_succeeded = false;  // All workers have exited by themselves with 0.
  bool empty = false;           // The containment is proved to be empty.
  bool has_all_output = false;  // All output and all ends of streams were passed to the session.
};

enum class EndingAction {
  kNothing,
  kTerminate,            // CONT and TERM to everything.
  kTerminateLeftovers,   // The same, to processes left behind by workers that exited on their own.
  kTerminateUninformed,  // The same, to processes that were not notified on the control socket.
  kInterrupt,            // CONT and INT to every worker's process group.
  kKill,                 // One pass of KILL over everything.
  kReportClean,
  kReportLeftovers,  // Some processes survived KILL.
};

struct EndingStep {
  EndingAction action = EndingAction::kNothing;
  // Call advance() again after this time at the latest; if absent, when a fact changes.
  std::optional<std::uint64_t> again_ns;
};

class Ending {
 public:
  // Processes that exit this soon after the last worker, such as Python's resource tracker, do not
  // count as left behind. They are polled until then.
  static constexpr std::uint64_t kLeaveNs = 100'000'000;
  static constexpr std::uint64_t kLeavePollNs = 20'000'000;
  // With --linger they are polled less often after that.
  static constexpr std::uint64_t kLingerPollNs = 250'000'000;
  // Time from TERM to KILL for processes that outlive the last worker.
  static constexpr std::uint64_t kLeftoverGraceNs = 2'000'000'000;
  static constexpr std::uint64_t kKillPauseNs = 50'000'000;
  // From the notice of a dead peer (launcher/README.md, "The abort epoch") to TERM, for workers on
  // the control socket.
  static constexpr std::uint64_t kWarningNs = 1'000'000'000;
  // From INT to TERM after Ctrl-C; half of the grace period if this period is shorter than two
  // seconds.
  static constexpr std::uint64_t kInterruptNs = nanoseconds_of(kInterruptGrace);
  // A process that still exists this long after KILL is in uninterruptible sleep: it is reported,
  // not awaited.
  static constexpr std::uint64_t kUnkillableNs = nanoseconds_of(kUnkillableAfter);

  // linger_ns: how long processes may outlive the last worker if all of them succeed.
  void workers_started(std::uint64_t linger_ns = 0);
  // Prepares for another generation; only allowed after kReported.
  void begin_again();
  // The first order starts the grace period; later ones may only shorten it. grace_ns 0 means KILL
  // immediately. warning_ns: TERM is sent this much later to workers that were notified on the
  // control socket; the grace period starts then.
  void order_stop(std::uint64_t grace_ns, std::uint64_t now_ns, std::uint64_t warning_ns = 0);
  // The same for Ctrl-C: INT immediately, TERM after kInterruptNs, and KILL at the end of the grace
  // period, which starts now.
  void order_interrupt(std::uint64_t grace_ns, std::uint64_t now_ns);
  // Returns the next action. Repeat until it is kNothing.
  EndingStep advance(const EndingFacts& facts, std::uint64_t now_ns);

  EndingPhase phase() const { return phase_; }
  bool stopping() const { return phase_ >= EndingPhase::kOrdered; }
  bool has_killed() const { return kill_since_ns_ != 0; }
  bool reported() const { return phase_ == EndingPhase::kReported; }
  // Since when and until when processes are allowed to outlive the workers (--linger).
  struct Linger {
    std::uint64_t since_ns = 0;
    std::uint64_t until_ns = 0;
  };
  std::optional<Linger> linger() const;

 private:
  EndingStep enter_killing(std::uint64_t now_ns);
  EndingStep keep_killing(std::uint64_t now_ns);
  EndingStep terminate_leftovers(const EndingFacts& facts, std::uint64_t now_ns);

  void keep_times(bool first, std::uint64_t terminate_at_ns, std::uint64_t kill_at_ns);

  EndingPhase phase_ = EndingPhase::kIdle;
  bool begins_with_interrupt_ = false;
  std::uint64_t workers_ended_ns_ = 0;  // In kRunning; 0 if a worker is running.
  std::uint64_t linger_ns_ = 0;
  bool lingers_ = false;
  std::uint64_t kill_at_ns_ = 0;
  std::uint64_t terminate_at_ns_ = 0;
  std::uint64_t kill_since_ns_ = 0;
  std::uint64_t next_kill_ns_ = 0;
};

}  // namespace ivy
