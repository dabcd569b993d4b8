// SPDX-License-Identifier: Apache-2.0
// The health gate: before the first start, and before each restart, it checks all hosts at the same
// time and within --check-timeout. A host that fails is left out if the job can do without it;
// otherwise the job is rejected. It runs only if --check, --expect-gpus or --check-load was given.
//
// Each host runs its checks in a process of its own (`ivy-node check`), so a host that hangs delays
// nobody beyond the limit. With --check-load the hosts then send streams to each other in rounds.
// report/check_verdict.h compares the results.
//
// Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/report/check_verdict.h"
#include "launcher/streams/sequence.h"
#include "proto/wire/check.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {

class HealthGate {
 public:
  explicit HealthGate(JobContext& job);

  // Checks the hosts that take part in this attempt. Returns false after rejecting the job. With
  // --doctor it only collects the findings.
  Awaitable<bool> pass(Sequence& steps, std::uint32_t generation);
  // Output of `ivy-node check` on this host.
  void take(std::size_t host, const TaskOutput& output);
  // The attempt does not start: ends the checks on all hosts.
  void cancel();
  // For --dry-run; empty without checks.
  std::string dry_run_line() const;

 private:
  // One host in this gate.
  struct HostRun {
    CheckedHost checked;
    HostFacts devices;     // As it has reported them.
    bool is_over = false;  // It has reported everything, or nothing more is expected.
    std::uint32_t port = 0;
    std::string address;  // To which other hosts send their streams; empty: none.
    bool is_streaming = false;
    stage::MessageSplitter replies;
  };

  std::vector<std::size_t> hosts_of_attempt() const;
  Awaitable<void> end_earlier_runs(Sequence& steps);
  Awaitable<void> run_checks(Sequence& steps);
  Awaitable<void> run_streams(Sequence& steps);
  Awaitable<void> await_news(Sequence& steps, std::chrono::steady_clock::time_point limit);
  void begin(HostRun& run, std::uint32_t generation);
  void send(std::size_t host, const CheckOrder& order);
  void send_end(std::size_t host);
  void handle(HostRun& run, const CheckReply& reply);
  void take_stream(HostRun& run, const CheckStreamed& streamed);
  void check_lost_hosts();
  void count_devices();
  bool decide(std::uint32_t generation);
  void show_progress();
  HostRun* find(std::size_t host);
  std::string stream_address(std::size_t host) const;
  const HostRecord& record(const HostRun& run) const { return job_.hosts[run.checked.host]; }

  JobContext& job_;
  const CheckWish wish_;
  std::vector<HostRun> runs_;
  // For each host: its process may be running, and whether it was told to end.
  enum class Process : std::uint8_t { kNone, kRunning, kEnding };
  std::vector<Process> processes_;
  std::string key_;           // Of this gate's streams.
  std::uint32_t round_ = 0;   // Of the streams, from 1.
  std::size_t distance_ = 0;  // In this round each host sends to the one this many places further.
  std::vector<std::size_t> ring_;  // Indices into runs_ of the hosts that stream.
  std::chrono::steady_clock::time_point begun_, shown_;
  Arrival<Done> news_;
};

}  // namespace ivy
