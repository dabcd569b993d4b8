// SPDX-License-Identifier: Apache-2.0
// When a Slurm allocation ends, and what has to happen before that. Pure: time is an argument, in
// milliseconds since 1970 as Slurm counts it. Thread: any.
//
//      learned                                        S before   last call   the end
//   ------|------ asked again, ever more often ----------|-----------|----------|
//                                                   --preempt-signal  stop
//
// A notice reaches the ranks once, whichever source sends it first: our own timer, Slurm by way of
// ivyrun (sbatch --signal=B:USR1@60 and `exec ivyrun`), or Slurm by way of the step that carries us
// (--signal=USR1@60).
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/contract/exit_code.h"
#include "proto/contract/status.h"

namespace ivy {

// Parses what squeue -o %L prints: "1-02:03:04", "59:58", "0:07". Nothing: the job has no limit
// (UNLIMITED). InvalidArgument: something else (INVALID, NOT_SET).
Result<std::optional<std::chrono::seconds>> parse_time_left(std::string_view text);

struct EndSettings {
  std::optional<std::chrono::milliseconds> stop_before;
  int preempt_signal = SIGTERM;
};

enum class SignalSource : std::uint8_t { kTimer, kLauncher, kStep };
inline constexpr std::size_t kSignalSources = 3;

enum class SignalMeaning : std::uint8_t {
  kInterrupt,  // The usual meaning of the signal: TERM stops the job.
  kPassOn,     // Pass it to the ranks' processes; it is not a notice.
  kNotice,     // To the ranks' own processes: they should save their state and end.
  kKnown,      // The ranks have the signal already.
  kTimeIsUp,   // Slurm's last signal, or TERM after the notice: stop the job in the remaining time.
};

enum class EndStep : std::uint8_t {
  kNothing,
  kAsk,     // When does the allocation end now? `scontrol update` may have moved it.
  kNotice,  // Send --preempt-signal to the ranks.
  kStop,    // They have had their time: stop the job.
};

class AllocationEnd {
 public:
  // The last call: Slurm's clock and ours, and what it takes to stop a job of many hosts.
  static constexpr std::chrono::milliseconds kLastCall{5'000};
  // KillWait, and as much again for a slow controller.
  static constexpr std::chrono::milliseconds kSlurmIsLate{90'000};
  // Slurm sends its signal up to a minute early (sbatch(1), --signal).
  static constexpr std::chrono::milliseconds kSlurmIsEarly{60'000};
  // The end is asked for again this long before something is due, with a deadline that is shorter.
  static constexpr std::chrono::milliseconds kAskAhead{6'000};
  // KillWait where it was not changed, less what our own end takes: TERM is followed by KILL.
  static constexpr std::chrono::milliseconds kUntilSlurmKills{25'000};

  explicit AllocationEnd(EndSettings settings)
      : settings_(settings),
        stop_before_(settings.stop_before.value_or(std::chrono::milliseconds(0))) {}

  // Sets when the allocation ends; nothing: never. True if that is sooner than --stop-before-end
  // allows for, so that the notice comes after half of the time left.
  bool learned(std::optional<std::int64_t> end_ms, std::int64_t now_ms);
  std::optional<std::int64_t> end_ms() const { return end_ms_; }
  // Reports that kAsk was not answered: the known end stays, and kAsk is due again later.
  void ask_failed(std::int64_t now_ms) { plan_to_ask(now_ms); }

  // Returns the step that is due by now; each one is returned once.
  EndStep due(std::int64_t now_ms);
  // When due() returns the next step. Nothing: never.
  std::optional<std::int64_t> next_ms() const;

  SignalMeaning received(int signal, SignalSource source, std::int64_t now_ms);

  // True once the ranks have been told of the end.
  bool has_notice() const { return notice_; }

  // The time from TERM to KILL: no longer than the allocation lasts, nor than Slurm waits when it
  // has sent TERM itself.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual, std::int64_t now_ms) const;

  // True if a rank that TERM ends now is ended with the allocation: Slurm sends TERM to all of a
  // step, and a rank may receive it before ivyrun does.
  bool is_last_call(std::int64_t now_ms) const;

 private:
  // One signal, sent once, which each source may report.
  struct Delivery {
    int signal = 0;
    std::int64_t began_ms = 0;
    bool is_notice = false;
    std::array<std::optional<std::int64_t>, kSignalSources> heard_ms;
  };

  std::optional<std::int64_t> notice_at_ms() const;
  std::int64_t stop_at_ms() const;
  void plan_to_ask(std::int64_t now_ms);
  bool was_extended(std::int64_t now_ms) const;
  bool is_near_end(std::int64_t now_ms) const;
  Delivery& delivery_of(int signal);
  static bool is_repetition(Delivery& delivery, SignalSource source, std::int64_t now_ms);

  const EndSettings settings_;
  std::optional<std::int64_t> end_ms_;
  std::chrono::milliseconds stop_before_;  // The setting; half of the time left if that is less.
  std::optional<std::int64_t> ask_at_ms_;
  std::vector<Delivery> deliveries_;  // The newest one of each signal.
  bool notice_ = false;
  bool stopped_ = false;
  bool was_learned_ = false;
};

}  // namespace ivy
