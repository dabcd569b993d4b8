// SPDX-License-Identifier: Apache-2.0
// The role of ivy-node that a srun step runs, once on every host: it is the step's task there,
// learns from standard input where the launcher is, and dials back.
//
//   slurmstepd ── dialer ─┬─ dial_transport    one connection, copies bytes; dies and is made anew
//                         └─ warden ─ supervisor ─ workers
//
// - The dialer lives until nothing of the job is left, so that to Slurm the task has run as long as
//   the job, and all of the job stays below it: orphans come to it (subreaper).
// - A transport that ends is replaced at once, then every half second, as long as there is a job.
// - The launcher decides about Slurm's signals: each is reported to it once, with the information
//   whether every process of the step got it (proctrack/linuxproc signals all) or the task alone
//   (proctrack/cgroup). SIGKILL ends everything: the scheduler sees to that.
// Thread: the process's only thread.
#pragma once

namespace ivy {

inline constexpr int kDialFailed = 4;
// How long to dial the launcher before a job has started.
inline constexpr int kFirstDialPatienceMs = 60'000;
// Before that, how long failures last until they are reported, once.
inline constexpr int kDialTroubleMs = 3'000;
// How long the launcher's order is waited for: srun opens its input when all hosts are there.
inline constexpr int kDialOrderTimeoutMs = 120'000;
inline constexpr int kDialPauseMs = 500;
// Pause after a signal: by then it has reached every process that it was for.
inline constexpr int kSignalSettleMs = 50;

// Runs the whole role; returns its exit code, 0 when it ended as it should.
int run_dial();

}  // namespace ivy
