// SPDX-License-Identifier: Apache-2.0
// judge() is called when the job or one of its attempts has ended. It sorts the workers' exits into
// groups (succeeded, stopped by the launcher, tolerated, failed), finds the first cause among the
// failed ones (first_cause()), and decides whether that or the launcher's own reason, such as a
// timeout or Ctrl-C, ended the job. blame_worker() and blame_launcher() set the exit code.
// last_traceback() extracts the text that is shown for the failed worker.
#include "launcher/report/verdict.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace ivy {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A scheduler that ends a job signals workers and ivyrun at slightly different times.
constexpr std::int64_t kSameSignalWindow = 2 * kSecond;
// A host counts as lost from its last message on, a supervisor from the end of its connection;
// peers may notice broken connections a heartbeat earlier.
constexpr std::int64_t kLossWindow = 2 * kSecond;

// In the order of the enumeration.
constexpr std::array<ReasonRow, 13> kLauncherReasons = {{
    {LauncherReason::kNone, "ok", kExitInternal},                  // Outcome has the exit code.
    {LauncherReason::kInterrupted, "interrupted", kExitInternal},  // Its signal gives the code.
    {LauncherReason::kTimeout, "timeout", kExitTimeout},
    {LauncherReason::kStalled, "stalled", kExitStalled},
    {LauncherReason::kHostLost, "host_lost", kExitHostLost},
    {LauncherReason::kSupervisorLost, "supervisor_lost", kExitHostLost},
    {LauncherReason::kStoreLost, "store_lost", kExitHostLost},
    {LauncherReason::kOutputClosed, "output_closed", kExitOutputClosed},
    {LauncherReason::kPreempted, "preempted", kExitPreempted},
    {LauncherReason::kNoProgress, "no_progress", kExitNoProgress},
    {LauncherReason::kHostsNotUp, "hosts_not_up", kExitHostsNotUp},
    {LauncherReason::kRejected, "refused", kExitRejected},
    {LauncherReason::kInternal, "internal", kExitInternal},
}};

constexpr bool has_a_row_for_each_reason() {
  for (std::size_t index = 0; index < kLauncherReasons.size(); ++index) {
    if (kLauncherReasons[index].reason != static_cast<LauncherReason>(index)) return false;
  }
  return kLauncherReasons.back().reason == LauncherReason::kInternal;
}
static_assert(has_a_row_for_each_reason());

// Tie-breaker for exits that the clocks cannot order: the likelihood of being the cause.
enum class Weight { kSymptom, kExitCode, kSignal, kOutOfMemory };

// Texts that a collective library's watchdog prints before it aborts the process.
constexpr std::array<std::string_view, 6> kWatchdogTexts = {
    "Watchdog caught collective operation timeout",
    "watchdog thread terminated with exception",
    "watchdog got stuck",
    "To avoid data inconsistency, we are taking the entire process down",
    "To avoid data inconsistency, we are tearing down the process",
    "Some NCCL operations have failed or timed out"};

// Texts that JAX's client of its coordination service prints before it terminates the process, by
// an abort or, depending on its build, with exit code 1. The second text is from older versions.
constexpr std::array<std::string_view, 2> kCoordinationTexts = {
    "the JAX distributed service detected fatal errors",
    "the coordinator detected missing heartbeats"};

bool contains_one_of(const WorkerEnd& end, std::span<const std::string_view> texts) {
  return std::any_of(texts.begin(), texts.end(), [&end](std::string_view text) {
    return end.stderr_tail.find(text) != std::string::npos;
  });
}

Weight weight(const WorkerEnd& end) {
  if (end.out_of_memory) return Weight::kOutOfMemory;
  if (was_aborted_by_watchdog(end)) return Weight::kSymptom;
  return end.status.signal != 0 ? Weight::kSignal : Weight::kExitCode;
}

bool succeeded(const WorkerEnd& end) { return end.status.is_success() && end.exec_failure.empty(); }

bool is_earlier(const WorkerEnd& a, const WorkerEnd& b) {
  return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.rank < b.rank;
}

// For exits on different hosts, whose clocks are only known within an error.
bool are_indistinguishable(const WorkerEnd& a, const WorkerEnd& b) {
  const std::int64_t distance = a.at_ns < b.at_ns ? b.at_ns - a.at_ns : a.at_ns - b.at_ns;
  return distance <= a.clock_error_ns + b.clock_error_ns;
}

// Returns the first cause among exits that are sorted by time. One host orders its own exits
// (agent/node/workers/exit_order.h), so only the first exit of each host can be the cause. Returns
// the earliest of these, unless a more severe one may have been as early. Symptoms only count if
// there is nothing else.
std::size_t first_cause(const std::vector<WorkerEnd>& ends,
                        const std::vector<std::size_t>& sorted) {
  std::vector<std::size_t> first_of_hosts;
  std::set<std::string_view> hosts;
  for (const std::size_t index : sorted) {
    if (weight(ends[index]) == Weight::kSymptom) continue;
    if (hosts.insert(ends[index].host).second) first_of_hosts.push_back(index);
  }
  if (first_of_hosts.empty()) return sorted.front();
  const std::size_t earliest = first_of_hosts.front();
  std::size_t best = earliest;
  for (const std::size_t other : first_of_hosts) {
    const bool may_be_first = are_indistinguishable(ends[earliest], ends[other]);
    if (may_be_first && weight(ends[other]) > weight(ends[best])) best = other;
  }
  return best;
}

// Returns true if the worker failed before the launcher had another reason to end the job, and not
// because of that reason.
bool worker_came_first(const WorkerEnd& end, const LauncherEnd& launcher_end) {
  if (end.at_ns > launcher_end.at_ns) return false;
  const std::int64_t before_ns = launcher_end.at_ns - end.at_ns;
  switch (launcher_end.reason) {
    case LauncherReason::kInterrupted:
    case LauncherReason::kPreempted:
      return end.status.signal != launcher_end.signal || before_ns > kSameSignalWindow;
    case LauncherReason::kHostLost:
    case LauncherReason::kSupervisorLost:
    case LauncherReason::kStoreLost:
      return weight(end) >= Weight::kSignal || before_ns > kLossWindow;
    default:
      return true;
  }
}

void blame_launcher(Outcome& outcome, const LauncherEnd& launcher_end) {
  if (launcher_end.reason == LauncherReason::kInterrupted) {
    outcome.exit_code = 128 + launcher_end.signal;
    outcome.raise_signal = launcher_end.signal;
    return;
  }
  const int given_code = launcher_end.diagnostic.exit_code;
  outcome.exit_code = given_code != 0 ? given_code : reason_row(launcher_end.reason).exit_code;
}

void blame_worker(Outcome& outcome, const WorkerEnd& end) {
  outcome.exit_code = end.status.shell_code();
  outcome.origin_is_worker = end.exec_failure.empty();
}

// One line of a traceback, without the prefix that a library puts before each line ("[rank3]: ").
struct TailLine {
  std::string_view text;
  std::size_t next;  // Start of the next line; npos after the last.
};

TailLine line_at(std::string_view tail, std::size_t at, std::string_view prefix) {
  const std::size_t end = tail.find('\n', at);
  std::string_view text = tail.substr(at, end == std::string_view::npos ? end : end - at);
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return {text, end == std::string_view::npos ? end : end + 1};
}

bool is_indented(std::string_view line) { return line.starts_with(' ') || line.starts_with('\t'); }

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr std::string_view kOriginal = "Original Traceback (most recent call last):";

// Copies one traceback: its header, its indented frames, and the exception with the indented rest
// of its message. Then copies the traceback that a DataLoader worker passed on, if one follows.
std::string copy_traceback(std::string_view tail, std::size_t at, std::string_view prefix) {
  std::string text;
  bool saw_exception = false;
  bool is_header = true;
  while (at < tail.size()) {
    const TailLine line = line_at(tail, at, prefix);
    const bool is_original = line.text.starts_with(kOriginal);
    const bool belongs = is_header || is_indented(line.text) || !saw_exception || is_original;
    if (!belongs) break;
    text += std::string(line.text) + "\n";
    if (is_header || is_original) {
      saw_exception = false;
    } else if (!is_indented(line.text)) {
      saw_exception = true;
    }
    is_header = false;
    if (line.next == std::string_view::npos) break;
    at = line.next;
  }
  return text;
}

}  // namespace

const ReasonRow& reason_row(LauncherReason reason) {
  return kLauncherReasons[static_cast<std::size_t>(reason)];
}

// A shell between us and the program reports the signal as an exit code.
bool was_abort(const ExitStatus& status) { return status.shell_code() == 128 + SIGABRT; }

bool was_aborted_by_watchdog(const WorkerEnd& end) {
  const bool is_abort = was_abort(end.status);
  if (is_abort && contains_one_of(end, kWatchdogTexts)) return true;
  const bool may_be_jax = is_abort || (end.status.signal == 0 && end.status.code == 1);
  return may_be_jax && contains_one_of(end, kCoordinationTexts);
}

Outcome judge(const std::vector<WorkerEnd>& ends, const LauncherEnd& launcher_end) {
  Outcome outcome;
  std::vector<std::size_t> failed;
  for (std::size_t index = 0; index < ends.size(); ++index) {
    if (succeeded(ends[index])) {
      outcome.succeeded.push_back(index);
    } else if (ends[index].after_stop) {
      outcome.victims.push_back(index);
    } else if (ends[index].tolerated) {
      outcome.lost.push_back(index);
    } else {
      failed.push_back(index);
    }
  }
  const auto by_time = [&ends](std::size_t a, std::size_t b) {
    return is_earlier(ends[a], ends[b]);
  };
  // If a failure ended the job, the first of all failures is the cause, even if the job could
  // continue without that rank.
  if (!failed.empty()) {
    for (const std::size_t index : std::exchange(outcome.lost, {}))
      (ends[index].lost_with_host ? outcome.lost : failed).push_back(index);
  }
  // The job stopped without a reason of the launcher and without a failure: report the earliest
  // victim.
  if (failed.empty() && launcher_end.reason == LauncherReason::kNone) failed.swap(outcome.victims);
  std::sort(failed.begin(), failed.end(), by_time);
  std::sort(outcome.victims.begin(), outcome.victims.end(), by_time);
  const bool has_reason = launcher_end.reason != LauncherReason::kNone;
  if (!failed.empty()) {
    const std::size_t first = first_cause(ends, failed);
    if (!has_reason || worker_came_first(ends[first], launcher_end)) {
      outcome.first = first;
      std::erase(failed, first);
      blame_worker(outcome, ends[first]);
    }
  }
  // Without progress, the worker of the last attempt is still named, but its exit code would let a
  // scheduler try again.
  const bool is_futile = launcher_end.reason == LauncherReason::kNoProgress;
  if ((!outcome.first && has_reason) || is_futile) {
    outcome.origin_is_worker = false;
    blame_launcher(outcome, launcher_end);
  }
  outcome.candidates = std::move(failed);
  return outcome;
}

std::string last_traceback(const std::string& stderr_tail) {
  const std::string_view tail = stderr_tail;
  std::size_t before = std::string_view::npos;
  while (true) {
    const std::size_t found = tail.rfind(kTraceback, before);
    if (found == std::string_view::npos) return "";
    const std::size_t newline = found == 0 ? std::string_view::npos : tail.rfind('\n', found - 1);
    const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view prefix = tail.substr(start, found - start);
    // A progress bar or "[rank3]: " may precede the header. After "Original " it is in the middle
    // of another traceback.
    const bool begins_one = !prefix.ends_with("Original ");
    const std::size_t above = start < 2 ? std::string_view::npos : tail.rfind('\n', start - 2);
    const std::size_t above_start = above == std::string_view::npos ? 0 : above + 1;
    // An exception that Python ignores while it exits is not the cause of the exit.
    const bool is_ignored =
        start > 0 && line_at(tail, above_start, prefix).text.starts_with("Exception ignored in");
    if (begins_one && !is_ignored) return copy_traceback(tail, found, prefix);
    if (found == 0) return "";
    before = found - 1;
  }
}

}  // namespace ivy
