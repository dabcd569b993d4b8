// SPDX-License-Identifier: Apache-2.0
// The faults that --drill has injected into a job, and what became of each: whether ivyrun named
// it, when the job had recovered, and how many steps were lost. The parts of a job call named() and
// its siblings wherever they name a failure; without a drill, these do nothing. Pure; times are
// CLOCK_MONOTONIC nanoseconds. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/drill_rule.h"
#include "launcher/report/verdict.h"

namespace ivy {

struct InjectedFault {
  enum class Verdict : std::uint8_t {
    kOpen,     // Not named so far.
    kCorrect,  // Named with the injected rank or host and cause.
    kWrong,    // Something else was named instead.
  };

  std::size_t number = 1;
  Fault fault = Fault::kKill;
  std::string target;              // "rank 3 (node02)"
  std::vector<int> ranks;          // Empty for a fault of hosts.
  std::vector<std::string> hosts;  // On which it has an effect.
  std::uint32_t generation = 0;
  std::int64_t at_ns = 0;
  double at_s = 0;                  // Since the first attempt started.
  std::int64_t lasts_until_ns = 0;  // When it is undone; `at_ns` if it has no duration.
  std::string failure;              // Why it could not be injected; empty if it was.
  bool has_ended_attempt = false;
  Verdict verdict = Verdict::kOpen;
  std::string named_as;  // The failure that was named.
  std::int64_t named_ns = 0;
  std::int64_t recovered_ns = 0;    // 0: not, or not yet.
  std::optional<double> last_step;  // The largest step before the failure.
  std::optional<double> steps_lost;

  bool is_over(std::int64_t now_ns) const { return now_ns >= lasts_until_ns; }
  // True if the job cannot continue without noticing it.
  bool must_be_named() const;
};

// A cause of a failure, as ivyrun has named it to the user.
struct NamedFailure {
  enum class Kind : std::uint8_t { kRank, kHost, kSupervisor, kSilence, kStall, kNotice };
  Kind kind = Kind::kRank;
  int rank = -1;           // kRank
  std::string host = {};   // Its host; empty for kStall.
  ExitStatus status = {};  // kRank
  std::string text = {};   // The report, or the end of the rank's standard error.
};

class FaultLog {
 public:
  // Returns its record, which the caller completes.
  InjectedFault& add(Fault fault, std::int64_t now_ns);
  bool empty() const { return faults_.empty(); }
  std::vector<InjectedFault>& faults() { return faults_; }
  const std::vector<InjectedFault>& faults() const { return faults_; }

  // ivyrun has reported something while the attempt continues: a silent host, a stall, a notice, a
  // rank or host without which the job continues, or a lost host before the verdict. Attributes it
  // to the newest open fault that has this effect.
  void named(const NamedFailure& failure, std::int64_t now_ns);
  // The verdict on an attempt, which may be given again at the end of the job. If no fault of the
  // attempt has this effect, its newest one was named wrongly.
  void attempt_failed(const std::optional<NamedFailure>& failure, std::uint32_t generation,
                      std::int64_t now_ns);
  // Failures that no fault of the drill explains.
  const std::vector<std::string>& others() const { return others_; }

  // Returns the table for the end of the job: one row for each fault; empty without any.
  std::string table(bool has_steps) const;

 private:
  std::vector<InjectedFault> faults_;
  std::vector<std::string> others_;
  std::optional<std::uint32_t> judged_generation_;
};

// Returns what the verdict on an attempt names: the rank that failed first, or the lost host or
// stall that is the launcher's own reason; none if it was stopped for another reason.
std::optional<NamedFailure> named_failure(const WorkerEnd* first, const LauncherEnd& reason);

// "yes", "no: rank 2 exit 1" or "-" if there was nothing to name.
std::string correctness_text(const InjectedFault& fault);

}  // namespace ivy
