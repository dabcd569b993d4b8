// SPDX-License-Identifier: Apache-2.0
// The role that ivy-node has as the task of a srun step on every host: it reads the launcher's
// address from standard input and connects to it.
//
//   slurmstepd ── dialer ─┬─ dial_transport    one connection, copies bytes; restarted at its exit
//                         └─ warden ─ supervisor ─ workers
//
// - The dialer exits only when nothing of the job is left, so that Slurm sees the task run as long
//   as the job, and all processes of the job remain below it (it is a subreaper).
// - A transport that exits is replaced immediately, then every half second, as long as the job
//   exists.
// - The launcher decides about Slurm's signals. Each is reported to it once, together with whether
//   every process of the step received it (proctrack/linuxproc signals all) or only the task
//   (proctrack/cgroup). SIGKILL needs no decision: the scheduler kills everything.
//
// Thread: the process's only thread.
#pragma once

namespace ivy {

inline constexpr int kDialFailed = 4;
// How long to try to reach the launcher before a job has started.
inline constexpr int kFirstDialTimeoutMs = 60'000;
// Before a job has started, failures that last this long are reported, once.
inline constexpr int kDialReportFailureMs = 3'000;
// How long to wait for the launcher's order: srun opens the input when all hosts are running.
inline constexpr int kDialOrderTimeoutMs = 120'000;
inline constexpr int kDialPauseMs = 500;
// Pause after a signal, by the end of which the signal has reached all its recipients.
inline constexpr int kSignalSettleMs = 50;

// Runs the whole role. Returns its exit code, 0 on success.
int run_dial();

}  // namespace ivy
