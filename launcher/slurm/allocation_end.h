// SPDX-License-Identifier: Apache-2.0
// The end of a Slurm allocation or of a pod, and the steps before it. Pure: time is an argument, in
// milliseconds since 1970 like Slurm's. Not thread-safe.
//
//      learned                                     stop_before     stop   last call   the end
//   ------|------ queried again, ever more often --------|-----------|--------|----------|
//                                                 --preempt-signal
//
// The job is stopped when a quarter of stop_before is left, but at most 15 s before the end. During
// the last call, the last 5 s, a TERM from outside is Slurm's.
//
// The ranks are notified once, by whichever source is first: our own timer; Slurm, through ivyrun
// (sbatch --signal=B:USR1@60 and `exec ivyrun`); or Slurm, through the step in which our processes
// run (--signal=USR1@60).
//
// The end of a pod is not known before its TERM, which is the notice: the end is stop_before later.
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

// Parses the output of squeue -o %L: "1-02:03:04", "59:58", "0:07". Returns std::nullopt if the job
// has no limit (UNLIMITED), and InvalidArgument for other text (INVALID, NOT_SET).
Result<std::optional<std::chrono::seconds>> parse_time_left(std::string_view text);

struct EndSettings {
  std::optional<std::chrono::milliseconds> stop_before;
  int preempt_signal = SIGTERM;
};

enum class SignalSource : std::uint8_t { kTimer, kLauncher, kStep };
inline constexpr std::size_t kSignalSources = 3;

enum class SignalMeaning : std::uint8_t {
  kInterrupt,  // The usual meaning of the signal: TERM stops the job.
  kPassOn,     // Pass it on to the ranks' processes; it is not a notice.
  kNotice,     // For the ranks' own processes, which should save their state and exit.
  kKnown,      // The ranks have received the signal already.
  kTimeIsUp,   // Slurm's last signal, or TERM after the notice: stop the job in the remaining time.
};

enum class EndStep : std::uint8_t {
  kNothing,
  kQuery,   // Query the end of the allocation again, because `scontrol update` may have changed it.
  kNotice,  // Send --preempt-signal to the ranks.
  kStop,    // The ranks have had their time: stop the job.
};

class AllocationEnd {
 public:
  // The last call covers differences between Slurm's clock and ours, and stopping a job of many
  // hosts.
  static constexpr std::chrono::milliseconds kLastCall{5'000};
  // KillWait, and some time for a slow controller.
  static constexpr std::chrono::milliseconds kSlurmIsLate{90'000};
  // Slurm sends its signal up to a minute early (sbatch(1), --signal).
  static constexpr std::chrono::milliseconds kSlurmIsEarly{60'000};
  // How long before a step the end is queried again; the query has a shorter deadline.
  static constexpr std::chrono::milliseconds kQueryAhead{6'000};
  // The default of KillWait, less the time for our own exit: TERM is followed by KILL.
  static constexpr std::chrono::milliseconds kUntilSlurmKills{25'000};

  explicit AllocationEnd(EndSettings settings)
      : settings_(settings),
        stop_before_(settings.stop_before.value_or(std::chrono::milliseconds(0))) {}

  // Sets the end of the allocation; std::nullopt means never. Returns true if the end is sooner
  // than --stop-before-end allows for, so that the notice comes after half of the time left.
  bool learned(std::optional<std::int64_t> end_ms, std::int64_t now_ms);
  // The allocation ends stop_before from now, and the signal that says so is about to be
  // received().
  void ends_after_notice(std::int64_t now_ms);
  std::optional<std::int64_t> end_ms() const { return end_ms_; }
  // Reports that kQuery was not answered: the known end remains valid, and kQuery is due again
  // later.
  void query_failed(std::int64_t now_ms) { plan_query(now_ms); }

  // Returns the step that is due by now; each step is returned once.
  EndStep due(std::int64_t now_ms);
  // Returns when due() will return the next step; std::nullopt means never.
  std::optional<std::int64_t> next_ms() const;

  SignalMeaning received(int signal, SignalSource source, std::int64_t now_ms);

  // Returns true once the ranks have been notified.
  bool has_notice() const { return notice_; }

  // Returns the time from TERM to KILL: at most the remaining time of the allocation, and, if Slurm
  // has sent TERM itself, at most the time that Slurm waits. The kubelet sends KILL at the end.
  std::chrono::milliseconds grace(std::chrono::milliseconds usual, std::int64_t now_ms) const;

  // Returns true if a rank that TERM kills now is considered killed by the allocation's end: Slurm
  // sends TERM to all processes of a step, and a rank may receive it before ivyrun does.
  bool is_last_call(std::int64_t now_ms) const;

 private:
  // One signal, sent once, that several sources may report.
  struct Delivery {
    int signal = 0;
    std::int64_t began_ms = 0;
    bool is_notice = false;
    std::array<std::optional<std::int64_t>, kSignalSources> received_ms;
  };

  std::optional<std::int64_t> notice_at_ms() const;
  std::int64_t stop_at_ms() const;
  void plan_query(std::int64_t now_ms);
  bool was_extended(std::int64_t now_ms) const;
  bool is_near_end(std::int64_t now_ms) const;
  Delivery& delivery_of(int signal);
  static bool is_repetition(Delivery& delivery, SignalSource source, std::int64_t now_ms);

  const EndSettings settings_;
  std::optional<std::int64_t> end_ms_;
  bool is_killed_at_end_ = false;          // By the kubelet, unlike Slurm, which waits KillWait.
  std::chrono::milliseconds stop_before_;  // The setting, or half of the time left if that is less.
  std::optional<std::int64_t> query_at_ms_;
  std::vector<Delivery> deliveries_;  // The newest one of each signal.
  bool notice_ = false;
  bool stopped_ = false;
  bool was_learned_ = false;
};

}  // namespace ivy
