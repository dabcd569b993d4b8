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
  std::string carrier;
  bool is_up = true;  // Else only the next two are known.
  std::string step;   // Where its way ended; may be empty.
  RemoteText failure;
  HostFacts facts;                  // With HostCheckup.
  std::int64_t clock_ms = 0;        // By so much its clock is ahead of this host's...
  std::int64_t clock_error_ms = 0;  // ...give or take.
};

struct Finding {
  bool has_failed = false;  // Else a warning.
  std::string check;        // "reach", "clock", "disk"...
  std::string what;
  std::string fix;
  std::vector<std::string> hosts;
};

struct Examination {
  std::string module;                // --check-module; empty: none.
  std::vector<ExaminedHost> hosts;   // In rank order.
  std::vector<Diagnostic> refusals;  // What would keep the job from starting.
};

// Hosts about which the same is to be said share a finding. What has failed comes first.
std::vector<Finding> find_troubles(const Examination& examined);
// A table of the hosts, and the findings below it.
std::string findings_text(const Examination& examined, const std::vector<Finding>& findings);
boost::json::object findings_object(const Examination& examined,
                                    const std::vector<Finding>& findings);

}  // namespace ivy
