// SPDX-License-Identifier: Apache-2.0
// summary() at the end puts the blocks together; each function before it makes one block or line of
// it, and returns an empty text if it has nothing to say.
#include "launcher/screen/summary.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "launcher/report/folded_ranks.h"
#include "launcher/screen/control_filter.h"
#include "launcher/screen/error_file.h"
#include "launcher/screen/rank_file_set.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxEvidenceLines = 20;  // Below the first cause.
constexpr std::size_t kMaxLineBytes = 1000;    // The log has the rest of a longer line.
constexpr std::size_t kMaxCandidates = 8;      // Further candidates for the first cause.
// Lines of a list, such as warnings, losses and attempts; the rest is only counted.
constexpr std::size_t kMaxNotes = 8;

std::string elapsed(std::int64_t from_ns, std::int64_t to_ns) {
  const long long tenths = std::max<std::int64_t>(to_ns - from_ns, 0) / 100'000'000;
  const long long seconds = tenths / 10;
  if (seconds >= 60) return clock_text(seconds);
  return std::to_string(seconds) + "." + std::to_string(tenths % 10) + " s";
}

// Makes a worker's line safe to print: its newest state ('\r'), without colours and control
// characters.
std::string clean_line(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t back = line.rfind('\r');
  if (back != std::string_view::npos) line.remove_prefix(back + 1);
  ControlFilter filter(ControlPolicy::kColoursOnly);
  std::string text(filter.apply(line));
  for (std::size_t at = text.find("\x1b["); at != std::string::npos; at = text.find("\x1b[", at)) {
    const std::size_t end = text.find('m', at);
    text.erase(at, end == std::string::npos ? end : end - at + 1);
  }
  for (std::size_t at = text.find('\t'); at != std::string::npos; at = text.find('\t', at))
    text.replace(at, 1, "    ");
  if (text.size() > kMaxLineBytes) text = text.substr(0, kMaxLineBytes) + " ...";
  return escape_control(text);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) lines.push_back(clean_line(take_part(text, '\n')));
  while (!lines.empty() && lines.back().find_first_not_of(' ') == std::string::npos)
    lines.pop_back();
  return lines;
}

std::string indented(const std::vector<std::string>& lines, std::size_t first) {
  std::string text;
  for (std::size_t i = first; i < lines.size(); ++i) text += "    " + lines[i] + "\n";
  return text;
}

// Returns the last lines of a text. A traceback keeps its first line too, which says that it is
// one.
std::string evidence_block(std::string_view text) {
  const std::vector<std::string> lines = lines_of(text);
  if (lines.size() <= kMaxEvidenceLines) return indented(lines, 0);
  if (!lines.front().starts_with("Traceback"))
    return indented(lines, lines.size() - kMaxEvidenceLines);
  const std::size_t kept = kMaxEvidenceLines - 2;
  const std::size_t left_out = lines.size() - kept - 1;
  return "    " + lines.front() + "\n      ... " + counted(left_out, "line") + " omitted\n" +
         indented(lines, lines.size() - kept);
}

// Returns the worker's own account of its end: its exception, or the last lines of its standard
// error.
std::string evidence(const WorkerEnd& end) {
  if (!end.exec_failure.empty()) return "";
  const ErrorFile file = read_error_file(end.error_file);
  if (!file.callstack.empty()) return evidence_block(file.callstack);
  // A worker that was killed by a signal printed no traceback: one in the tail would be older and
  // mislead.
  const std::string traceback = end.status.signal == 0 ? last_traceback(end.stderr_tail) : "";
  if (!traceback.empty() && !end.was_just_printed) return evidence_block(traceback);
  if (!traceback.empty()) {
    // The traceback is still on the screen, so only the exception is repeated: its line, and the
    // indented lines of its message.
    const std::vector<std::string> lines = lines_of(traceback);
    std::size_t exception = lines.size() - 1;
    while (exception > 0 && lines[exception].starts_with(' ')) --exception;
    return indented(lines, exception) + "    (see the traceback above)\n";
  }
  std::string text = evidence_block(end.stderr_tail);
  if (!file.message.empty() && end.stderr_tail.find(file.message) == std::string::npos)
    text += evidence_block(file.message);
  return text.empty() ? "    (no stderr output)\n" : text;
}

// The supervisor's message about the end, "WHAT: WHY". The second part may be missing.
struct Cause {
  std::string what;
  std::string why;
};
Cause cause_of(const WorkerEnd& end) {
  const std::size_t colon = end.cause.find(": ");
  if (colon == std::string::npos) return {end.cause, ""};
  return {end.cause.substr(0, colon), end.cause.substr(colon + 2)};
}

std::string how_it_ended(const WorkerEnd& end) {
  if (!end.exec_failure.empty()) return "could not be started: " + end.exec_failure;
  if (!end.cause.empty()) return cause_of(end).what;
  if (end.out_of_memory) return "killed by the kernel OOM killer (" + describe(end.status) + ")";
  return "with " + describe(end.status) + (end.core_dumped ? " (core dumped)" : "");
}

std::string location(const WorkerEnd& end) {
  std::string text = "(" + end.host;
  if (end.pid > 0) text += ", pid " + std::to_string(end.pid);
  return text + ")";
}

// Advice about a program that was not executed.
std::string start_fix(const WorkerEnd& end) {
  if (end.exec_failure.empty()) return "";
  const std::string host = clean_line(end.host);
  if (end.failed_step == StartStep::kStdin)
    return "  fix:   make /dev/null readable on " + host +
           ": its /dev is empty or not accessible\n";
  if (end.failed_step == StartStep::kBind)
    return "  fix:   use --bind-to none; the processors that " + host +
           " lets it use have changed\n";
  switch (end.failed_errno) {
    case ENOEXEC:
      return "  fix:   put its interpreter before it, or build it for the architecture of " + host +
             "\n";
    case EMFILE:
    case ENFILE:
      return "  fix:   raise the limit of open files on " + host +
             " (ulimit -n): each rank uses four descriptors of its supervisor\n";
    case EAGAIN:
      return "  fix:   raise the limit of processes on " + host +
             " (ulimit -u, or pids.max of its cgroup)\n";
    case ENOENT:
      // The message names anything else that is missing, such as the working directory.
      if (end.failed_step != StartStep::kExec) return "";
      return "  fix:   the program, or the interpreter or loader that it needs, is missing on " +
             host + "\n";
    default:
      return "";
  }
}

std::string cause_line(const WorkerEnd& end) {
  const std::string why = cause_of(end).why;
  return why.empty() ? "" : "  cause: " + clean_line(why) + "\n";
}

// A watchdog kills the rank that waits, but the user has to look at the rank that it waits for.
std::string symptom_line(const SummaryInputs& inputs, const WorkerEnd& end) {
  if (!was_aborted_by_watchdog(end)) return "";
  const std::string text =
      inputs.finding.empty()
          ? "another rank did not enter the collective, or called a different one"
          : inputs.finding;
  return "  symptom: a collective's watchdog killed it: " + clean_line(text) + "\n";
}

// Lists the devices' events, whether a worker or the launcher ended the job.
std::string device_block(const SummaryInputs& inputs) {
  std::string text;
  for (const std::string& line : inputs.device_lines)
    text += (text.empty() ? "  device: " : "          ") + clean_line(line) + "\n";
  return text;
}

std::string first_cause_line(const SummaryInputs& inputs, const WorkerEnd& end) {
  std::string line = "rank " + std::to_string(end.rank) + " ";
  if (!end.exec_failure.empty()) {
    line += how_it_ended(end) + " (" + end.host + ")";
  } else {
    // "... failed first (node3, pid 7) with exit code 1", but "...: killed by the kernel ...".
    line += "failed first " + location(end) + (end.out_of_memory ? ": " : " ") + how_it_ended(end) +
            " after " + elapsed(inputs.started_at_ns, end.at_ns);
  }
  return "error[IVY-R001]: " + clean_line(line);
}

std::string first_cause_block(const SummaryInputs& inputs, const WorkerEnd& end) {
  return "ivyrun: " + first_cause_line(inputs, end) + "\n" + evidence(end) + start_fix(end) +
         cause_line(end) + symptom_line(inputs, end);
}

std::string candidates_block(const SummaryInputs& inputs) {
  const std::vector<std::size_t>& candidates = inputs.outcome->candidates;
  const std::vector<WorkerEnd>& ends = *inputs.ends;
  std::string text;
  const char* lead = inputs.outcome->first ? "  also:  " : "  ranks: ";
  for (std::size_t i = 0; i < std::min(candidates.size(), kMaxCandidates); ++i) {
    const WorkerEnd& end = ends[candidates[i]];
    std::string line = "rank " + std::to_string(end.rank) + " " + location(end) + " ";
    line += how_it_ended(end) + " after " + elapsed(inputs.started_at_ns, end.at_ns);
    text += (i == 0 ? lead : "         ") + clean_line(line) + "\n";
  }
  if (candidates.size() <= kMaxCandidates) return text;
  std::vector<int> rest;
  for (std::size_t i = kMaxCandidates; i < candidates.size(); ++i)
    rest.push_back(ends[candidates[i]].rank);
  return text + "         and " + std::to_string(rest.size()) +
         (rest.size() == 1 ? " more: rank " : " more: ranks ") + folded_ranks(rest) + "\n";
}

// Names the ranks that had already exited with 0: often they are the cause, because the others wait
// for them in a collective.
std::string finished_before_line(const SummaryInputs& inputs) {
  if (!inputs.outcome->first) return "";
  const WorkerEnd& first = (*inputs.ends)[*inputs.outcome->first];
  std::vector<int> ranks;
  std::int64_t last_ns = 0;
  for (const std::size_t index : inputs.outcome->succeeded) {
    const WorkerEnd& end = (*inputs.ends)[index];
    if (end.at_ns > first.at_ns) continue;
    ranks.push_back(end.rank);
    last_ns = std::max(last_ns, end.at_ns);
  }
  if (ranks.empty()) return "";
  return (ranks.size() == 1 ? "  before: rank " : "  before: ranks ") + folded_ranks(ranks) +
         " had exited with code 0" + (ranks.size() == 1 ? ", " : ", the last one ") +
         elapsed(last_ns, first.at_ns) + " earlier\n";
}

// True if the worker ended because it was told to, or had succeeded; else it failed by itself in
// the meantime.
bool was_stopped(const WorkerEnd& end) {
  const int code = end.status.shell_code();
  return code == 0 || code == 128 + SIGTERM || code == 128 + SIGKILL || code == 128 + SIGINT;
}

std::string stopped_line(const SummaryInputs& inputs) {
  const WorkerEnd* first =
      inputs.outcome->first ? &(*inputs.ends)[*inputs.outcome->first] : nullptr;
  std::vector<int> stopped;
  std::vector<int> failed_alike;
  std::vector<int> failed;
  for (const std::size_t index : inputs.outcome->victims) {
    const WorkerEnd& end = (*inputs.ends)[index];
    // A job may end before its workers start.
    if (end.pid <= 0) continue;
    // A worker that is told to stop may answer with an exit code. That counts as a failure only if
    // another worker had failed before.
    if (!first || was_stopped(end))
      stopped.push_back(end.rank);
    else if (end.status.signal == 0 && first->status.signal == 0 &&
             end.status.code == first->status.code)
      failed_alike.push_back(end.rank);
    else
      failed.push_back(end.rank);
  }
  const std::string noun = first ? "other rank" : "rank";
  std::string text;
  if (!failed_alike.empty())
    text += "  " + counted(failed_alike.size(), noun) + " also exited with code " +
            std::to_string(first->status.code) + ": " + folded_ranks(failed_alike) + "\n";
  if (!failed.empty())
    text += "  " + counted(failed.size(), noun) +
            " failed while being stopped: " + folded_ranks(failed) + "\n";
  if (!stopped.empty())
    text += "  " + counted(stopped.size(), noun) + (stopped.size() == 1 ? " was" : " were") +
            " stopped: " + folded_ranks(stopped) + "\n";
  return text;
}

// Returns "runs/j/0", "/data/runs/j/0 on every host", or both.
std::string log_locations(const SummaryInputs& inputs) {
  std::string text = inputs.head_logs;
  if (!inputs.node_logs.empty())
    text += (text.empty() ? "" : ", and ") + inputs.node_logs + " on every host";
  return clean_line(text);
}

// Returns the log of one rank, at the head or on the rank's host; empty: none.
std::string log_of(const SummaryInputs& inputs, const WorkerEnd& end) {
  const std::string here = inputs.log_path ? inputs.log_path(end.rank) : "";
  if (!here.empty() || inputs.node_logs.empty()) return here;
  return inputs.node_logs + "/" + log_file_name(end.rank, 2) + " on " + end.host;
}

std::string log_lines(const SummaryInputs& inputs) {
  std::vector<std::size_t> shown;
  if (inputs.outcome->first) shown.push_back(*inputs.outcome->first);
  for (const std::size_t index : inputs.outcome->candidates)
    if (shown.size() < kMaxCandidates) shown.push_back(index);
  std::string text;
  for (const std::size_t index : shown) {
    const std::string path = log_of(inputs, (*inputs.ends)[index]);
    if (path.empty()) continue;
    text += (text.empty() ? "  log:   " : "         ") + clean_line(path) + "\n";
  }
  const std::string locations = log_locations(inputs);
  return text.empty() && !locations.empty() ? "  logs:  " + locations + "\n" : text;
}

// Returns the first lines, each after `prefix`, and a last line that counts the rest: "and 3" +
// more.
std::string first_lines(const std::vector<std::string>& lines, const std::string& prefix,
                        const std::string& more) {
  std::string text;
  const std::size_t shown = std::min(lines.size(), kMaxNotes);
  for (std::size_t i = 0; i < shown; ++i) text += prefix + clean_line(lines[i]) + "\n";
  if (lines.size() > shown)
    text += prefix + "and " + std::to_string(lines.size() - shown) + more + "\n";
  return text;
}

std::string warnings(const std::vector<std::string>& lines) {
  return first_lines(lines, "ivyrun: warning: ", " similar warnings");
}

std::string attempt_of(int number, const SummaryInputs& inputs) {
  return "attempt " + std::to_string(number) + " of " + std::to_string(inputs.max_attempts);
}

// One line for each failed attempt; of many, the first and the last ones.
std::string attempts_block(const SummaryInputs& inputs) {
  const std::size_t count = inputs.attempts.size();
  const std::size_t left_out = count > kMaxNotes ? count - kMaxNotes : 0;
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (left_out > 0 && i == 1) text += "  ... " + counted(left_out, "attempt") + " omitted\n";
    if (i >= 1 && i < 1 + left_out) continue;
    text += "  " + attempt_of(inputs.attempts[i].number, inputs) + ": " +
            clean_line(inputs.attempts[i].cause) +
            (inputs.attempts[i].condemned.empty()
                 ? ""
                 : "; later attempts without " + inputs.attempts[i].condemned) +
            "\n";
  }
  return text;
}

// One line for each process that the job could do without.
std::string losses_block(const SummaryInputs& inputs) {
  return first_lines(inputs.losses, "  ", " more");
}

std::string last_line(const SummaryInputs& inputs) {
  const Outcome& outcome = *inputs.outcome;
  std::string text = "ivyrun: exit code " + std::to_string(outcome.exit_code);
  if (outcome.origin_is_worker && outcome.first) {
    const WorkerEnd& end = (*inputs.ends)[*outcome.first];
    return text + " (from rank " + std::to_string(end.rank) +
           (inputs.attempts.empty() ? "" : " at " + attempt_of(inputs.attempt, inputs)) + ")\n";
  }
  if (outcome.raise_signal != 0) text += ", " + signal_name(outcome.raise_signal);
  return text + " (from ivyrun)\n";
}

bool is_success(const SummaryInputs& inputs) {
  return inputs.outcome->exit_code == 0 && !inputs.outcome->first &&
         inputs.launcher_end->reason == LauncherReason::kNone;
}

// Returns the line about ranks that failed while the job continued; empty if there are none.
std::string success_with_losses(const SummaryInputs& inputs) {
  const Outcome& outcome = *inputs.outcome;
  if (!outcome.lost.empty())
    return "succeeded without " + counted(outcome.lost.size(), "rank") + " of " +
           std::to_string(inputs.world_size);
  if (inputs.losses.empty()) return "";
  return "succeeded; " + counted(inputs.losses.size(), "worker") +
         (inputs.losses.size() == 1 ? " was" : " were") + " replaced";
}

}  // namespace

std::string headline(const SummaryInputs& inputs) {
  if (inputs.outcome->first)
    return first_cause_line(inputs, (*inputs.ends)[*inputs.outcome->first]);
  if (is_success(inputs))
    return inputs.attempts.empty() ? success_with_losses(inputs)
                                   : "succeeded at " + attempt_of(inputs.attempt, inputs);
  const Diagnostic& reason = inputs.launcher_end->diagnostic;
  return reason.what.empty() ? "" : headline(reason);  // Of diagnostic.h.
}

std::string summary(const SummaryInputs& inputs) {
  const Outcome& outcome = *inputs.outcome;
  const LauncherEnd& launcher_end = *inputs.launcher_end;
  std::string text = warnings(inputs.output_errors) + warnings(inputs.unclean);
  const bool succeeded = is_success(inputs);
  const std::string locations = log_locations(inputs);
  if (succeeded && inputs.quiet) return text;
  for (const std::string& note : inputs.notes) text += "ivyrun: note: " + clean_line(note) + "\n";
  if (succeeded) {
    if (!inputs.attempts.empty())
      text += "ivyrun: succeeded at " + attempt_of(inputs.attempt, inputs) + "\n" +
              attempts_block(inputs);
    if (const std::string line = success_with_losses(inputs); !line.empty())
      text += "ivyrun: " + line + "\n";
    text += losses_block(inputs);
    return locations.empty() ? text : text + "ivyrun: logs: " + locations + "\n";
  }
  if (outcome.first) text += first_cause_block(inputs, (*inputs.ends)[*outcome.first]);
  const bool has_words =
      launcher_end.reason != LauncherReason::kNone && !launcher_end.diagnostic.what.empty();
  // If a worker failed first, the launcher's own reason is a consequence ("then:"), unless it is
  // the decision that another attempt would not help.
  const bool is_consequence = outcome.first && launcher_end.reason != LauncherReason::kNoProgress;
  if (has_words && !is_consequence) text += render(launcher_end.diagnostic);
  text += device_block(inputs) + finished_before_line(inputs) + candidates_block(inputs) +
          stopped_line(inputs) + log_lines(inputs);
  if (has_words && is_consequence)
    text += "  then:  " + clean_line(launcher_end.diagnostic.what) + "\n";
  return text + losses_block(inputs) + attempts_block(inputs) + last_line(inputs);
}

std::string attempt_cause(const WorkerEnd& first, std::int64_t started_at_ns) {
  return clean_line("rank " + std::to_string(first.rank) + " " + location(first) + " " +
                    how_it_ended(first) + " after " + elapsed(started_at_ns, first.at_ns));
}

}  // namespace ivy
