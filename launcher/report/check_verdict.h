// SPDX-License-Identifier: Apache-2.0
// The verdict of the health gate: which hosts fail which check, and the messages about them.
// launcher/job/health_gate.h runs the checks. Pure; thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "launcher/report/host_findings.h"
#include "proto/contract/remote_text.h"
#include "proto/wire/check.pb.h"

namespace ivy {

// A host is slow if it reaches less than this share of the median of all hosts.
inline constexpr double kSlowHost = 0.7;

// The requested checks.
struct CheckWish {
  std::vector<std::string> commands;  // --check
  std::optional<int> devices;         // --expect-gpus
  bool load = false;                  // --check-load
  std::chrono::milliseconds limit{0};
};

// Everything that a host has reported, or the reason why it has not.
struct CheckedHost {
  std::size_t host = 0;  // Its index in the job.
  std::string name;
  RemoteText doing;       // The step that it has started last; empty: it has not begun.
  bool is_late = false;   // It did not report everything within the limit.
  std::string breakdown;  // The checks broke off there, for this reason; empty: they did not.
  std::optional<CheckSpace> space;
  std::optional<std::uint32_t> devices;  // Usable ones.
  RemoteText device_reason;              // Why there are no more; may be empty.
  std::vector<CheckedCommand> commands;
  double operations_per_s = 0;  // 0: not measured.
  // The fastest stream to or from this host in bytes per second; nothing: not measured.
  std::optional<double> stream_per_s;
  RemoteText stream_error;  // May be empty.
};

struct CheckFailure {
  std::size_t host = 0;  // Its index in the job.
  std::string name;      // Of the host.
  std::string id;        // IVY-H020...
  std::string check;     // "--check 'dcgmi diag -r 1'"
  RemoteText reason;     // One line.
  RemoteText details;    // More lines, such as the end of a command's output; may be empty.
  std::string fix;
};

// Returns at most one failure for each host and check, in the order of the hosts. A fast stream
// needs two healthy hosts, so with fewer than three hosts, networks are not compared.
std::vector<CheckFailure> judge_checks(const CheckWish& wish,
                                       const std::vector<CheckedHost>& hosts);

// Returns a message for each check and reason, with all hosts that share it. when: "before the
// start".
std::vector<Diagnostic> check_diagnostics(const std::vector<CheckFailure>& failures,
                                          const std::string& when);
// The same for --doctor.
std::vector<Finding> check_findings(const std::vector<CheckFailure>& failures);

// Returns the figures of --check-load, one line for each host that has some: "node02: 61.2
// Goperations/s, 1.17 GB/s".
std::vector<std::string> load_lines(const std::vector<CheckedHost>& hosts);

// Lists the checks for --dry-run; empty: none.
std::vector<std::string> check_names(const CheckWish& wish);

}  // namespace ivy
