// SPDX-License-Identifier: Apache-2.0
// The one block that ends a job that did not end well. Pure; thread: any.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/report/verdict.h"

namespace ivy {

// One that was followed by a restart, or would have been.
struct FailedAttempt {
  int number = 1;
  std::string cause;
};

struct SummaryInputs {
  const std::vector<WorkerEnd>* ends = nullptr;
  const LauncherEnd* launcher_end = nullptr;
  const Outcome* outcome = nullptr;
  std::int64_t started_at_ns = 0;  // When the workers were started, launcher's clock.
  int world_size = 0;
  std::function<std::string(int rank)> log_path;  // Standard error file of a rank, or empty.
  bool quiet = false;                             // Say nothing when every rank ended well.
  std::string head_logs;  // Folder of this generation's files at the head; empty: none.
  std::string node_logs;  // The same on every host with workers (--log-to node); absolute.
  std::vector<std::string> complaints;
  std::vector<std::string> notes;    // Nothing went wrong, but the user should know.
  std::vector<std::string> unclean;  // "node3: pid 12 (python3) cannot be killed: D in nfs_wait".
  std::string finding;               // JobEvidence::finding(), shown with a watchdog's abort.
  std::vector<std::string> device_lines;  // device_lines(), shown with the first cause.
  std::vector<FailedAttempt> attempts;
  std::vector<std::string> losses;  // RankLosses::lines() has them in order.
  int attempt = 1;                  // Number of the last attempt.
  int max_attempts = 1;
};

// Returns a text that ends with a newline, or an empty one if every rank succeeded and there is
// nothing to report. If log files were written, one line names their directory.
std::string summary(const SummaryInputs& inputs);

// Why an attempt failed, in one line: "rank 1 (node03, pid 4711) with exit code 3 after 00:12:44".
std::string attempt_cause(const WorkerEnd& first, std::int64_t started_at_ns);

}  // namespace ivy
