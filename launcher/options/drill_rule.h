// SPDX-License-Identifier: Apache-2.0
// The value of --drill: faults that ivyrun injects into its own job, "kill,stop every=15s seed=7".
// Pure; thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Values of --drill in one job: more are a mistake of a script.
inline constexpr std::size_t kMaxDrillRules = 16;

enum class Fault : std::uint8_t {
  kKill,            // SIGKILL to a rank's process.
  kStop,            // SIGSTOP, then SIGCONT after `lasts`.
  kSegfault,        // SIGSEGV to a rank's process.
  kHoldGil,         // A rank's Python holds its global interpreter lock for `lasts`.
  kCut,             // The host's network is cut for `lasts`.
  kSlow,            // The host's network is slow for `lasts`.
  kFullDisk,        // A file system of the host is full for `lasts`.
  kKillSupervisor,  // SIGKILL to the host's supervisor.
  kNotice,          // A notice that the host will be stopped, as from a cloud.
  kDrain,           // The same, as from Slurm.
};
std::string_view fault_name(Fault fault);
// True if the fault's target is a rank, otherwise a host.
bool hits_ranks(Fault fault);
// True if the fault is undone after DrillRule::lasts.
bool has_duration(Fault fault);
// True if `ivy-node drill` causes the fault on the host.
bool is_host_task(Fault fault);

struct DrillRule {
  enum class Pick : std::uint8_t { kAny, kFirst, kAll, kListed };

  std::string text;           // As typed, for messages.
  std::vector<Fault> faults;  // One of them each time.
  std::chrono::milliseconds every{60'000};
  std::chrono::milliseconds after{0};  // To the first fault. parse_drill() sets it to `every`.
  std::chrono::milliseconds lasts{10'000};
  std::chrono::milliseconds deadline{120'000};  // Of a notice, from its arrival.
  std::uint64_t times = 0;                      // At most this many faults; 0: no limit.
  Pick ranks = Pick::kAny;
  std::vector<int> listed_ranks;
  Pick hosts = Pick::kAny;  // For faults of ranks: only ranks on these hosts.
  std::vector<std::string> listed_hosts;
  std::uint64_t seed = 0;
  std::string path;                    // kFullDisk: a directory on that file system.
  std::uint64_t size = 1ull << 30;     // kFullDisk: the largest file that may be made.
  std::string rate;                    // kSlow: "10mbit", as for tc; empty: no limit.
  std::chrono::milliseconds delay{0};  // kSlow: added to each packet that the host sends.
  std::size_t ranks_column = 1, hosts_column = 1;  // In `text`, for errors about them.

  bool has(Fault fault) const;
};

// Errors contain the column.
Result<DrillRule> parse_drill(const std::string& text);
// Returns the error "column N: WHAT".
Error drill_error(std::size_t column, const std::string& what, const std::string& fix = {});

}  // namespace ivy
