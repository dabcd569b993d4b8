// SPDX-License-Identifier: Apache-2.0
// The summary: the block of lines that ivyrun prints last, when a job failed or when there is
// something to report about its success. It names the first cause with its evidence, its
// consequences, the logs and the exit code. machine_output.h has the same contents as JSON. Pure;
// thread: any.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/verdict.h"

namespace ivy {

// An attempt that failed, after which another one was scheduled. Attempts are counted from 1,
// generations (launcher/job/job.h) from 0.
struct FailedAttempt {
  int number = 1;
  std::string cause;      // As attempt_cause() words it for a rank.
  std::string host = {};  // The failing rank's host; empty if the attempt ended without one.
  // "node03 (--condemn-on xid:79)": the host that later attempts do without; usually empty.
  std::string condemned = {};
};

// A host that took no part any longer at the end.
struct LeftOutHost {
  std::string name;
  std::string reason;  // One line: "--check 'nvidia-smi': exit code 6".
};

// Everything that the summary reports. The pointers must not be null.
struct SummaryInputs {
  const std::vector<WorkerEnd>* ends = nullptr;  // How each worker ended, or that it was stopped.
  const LauncherEnd* launcher_end = nullptr;  // The launcher's own reason to end the job, if any.
  const Outcome* outcome = nullptr;           // The verdict: exit code, first cause, victims.
  std::int64_t started_at_ns = 0;  // When the workers were started, on the launcher's clock.
  int world_size = 0;              // Ranks of the job.
  // Returns the path of a rank's standard error file; empty: none.
  std::function<std::string(int rank)> log_path;
  bool quiet = false;     // --quiet: if every rank ended well, only warnings are printed.
  std::string head_logs;  // This generation's log directory on the launcher's host; empty: none.
  // This generation's log directory on every host with workers (--log-to node), as an absolute
  // path; empty: none.
  std::string node_logs;
  std::vector<std::string> output_errors;  // Warnings: output or files that could not be written.
  std::vector<std::string> notes;          // Notes: nothing went wrong, but the user should know.
  // Warnings about processes that may still run: "node3: pid 12 (python3) cannot be killed: D in
  // nfs_wait".
  std::vector<std::string> unclean;
  // JobEvidence::finding(), printed if a collective's watchdog killed the first rank.
  std::string finding;
  std::vector<std::string> device_lines;  // device_lines(), printed with the first cause.
  std::vector<FailedAttempt> attempts;    // The attempts before this one.
  std::vector<std::string> losses;        // RankLosses::lines(), in their order.
  std::vector<LeftOutHost> left_out;      // For programs; `notes` has them for users.
  int attempt = 1;                        // Number of this attempt, from 1.
  int max_attempts = 1;                   // Attempts that the job might have had.
};

// Returns the summary, which ends with a newline, or an empty text if every rank succeeded and
// there is nothing to report. If log files were written, one line names their directory.
std::string summary(const SummaryInputs& inputs);

// Returns the line of the summary that says how the job ended, without "ivyrun: ": the first cause,
// the launcher's reason, or what was special about its success. Empty if every rank exited with 0
// at the first attempt.
std::string headline(const SummaryInputs& inputs);

// Returns why an attempt failed, in one line: "rank 1 (node03, pid 4711) with exit code 3 after
// 00:12:44".
std::string attempt_cause(const WorkerEnd& first, std::int64_t started_at_ns);

}  // namespace ivy
