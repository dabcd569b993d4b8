// SPDX-License-Identifier: Apache-2.0
// ivyrun --doctor: what was found on each host, and what to do about it. Pure; thread: any.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/report/diagnostic.h"
#include "proto/contract/remote_text.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct ExaminedHost {
  std::string name;
  std::string transport;
  bool is_up = true;  // Else only the next two are known.
  std::string step;   // The step at which connecting failed; may be empty.
  RemoteText failure;
  HostFacts facts;  // With a HostCheckup, since it was asked for.
  // By so much its clock is ahead of this host's, and by so much that may be wrong.
  std::int64_t clock_ms = 0;
  std::int64_t clock_error_ms = 0;
};

struct Finding {
  bool has_failed = false;  // Otherwise it is a warning.
  std::string check;        // A word such as "reach", "clock" or "disk".
  std::string what;
  std::string fix;
  std::vector<std::string> hosts;
};

// Hosts are in rank order.
struct Examination {
  std::string module;  // --check-module; empty where none was named.
  std::vector<ExaminedHost> hosts;
  std::vector<Diagnostic> refusals;  // Errors that would keep the job from starting.
};

// Hosts with the same problem share a finding. Failures are listed before warnings.
std::vector<Finding> find_troubles(const Examination& examined);
// A table of the hosts, and the findings below it.
std::string findings_text(const Examination& examined, const std::vector<Finding>& findings);
boost::json::object findings_object(const Examination& examined,
                                    const std::vector<Finding>& findings);

}  // namespace ivy
