// SPDX-License-Identifier: Apache-2.0
// ivyrun --doctor: the findings on each host, with advice. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "proto/contract/remote_text.h"
#include "proto/wire/check.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct ExaminedHost {
  std::string name;
  bool is_up = true;

  // Set if the host is not up.
  std::string step;  // The step at which it failed; may be empty.
  RemoteText failure;
  std::string fix;              // Advice; may be empty.
  bool is_about_ports = false;  // The host was reached, but cannot connect to the first host.

  // Set if the host is up.
  std::string transport;
  HostFacts facts;  // Includes the HostCheckup that --doctor requests.
  // How far its clock is ahead of this host's, and the error of that value.
  std::int64_t clock_ms = 0;
  std::int64_t clock_error_ms = 0;
};

struct Finding {
  bool has_failed = false;  // If false, it is a warning.
  std::string check;        // A word such as "reach", "clock" or "disk".
  std::string what;
  std::string fix;                 // May be empty.
  std::vector<std::string> hosts;  // Empty if the finding concerns the job as a whole.
};

// Facts for --doctor; hosts are in rank order.
struct Examination {
  std::string module;  // --check-module; empty if not given.
  std::vector<ExaminedHost> hosts;
  std::vector<Diagnostic> rejections;  // Errors that would keep the job from starting.
  std::vector<Finding> checks = {};    // --check, --expect-gpus, --check-load
};

// Returns the findings, failures before warnings. Hosts with the same problem share a finding.
std::vector<Finding> find_problems(const Examination& examined);
// Returns only the failures that concern space in the working directory and in /dev/shm; they name
// no hosts.
std::vector<Finding> space_failures(const CheckSpace& space);
// Returns a table of the hosts, followed by the findings.
std::string findings_text(const Examination& examined, const std::vector<Finding>& findings);
boost::json::object findings_object(const Examination& examined,
                                    const std::vector<Finding>& findings);

}  // namespace ivy
