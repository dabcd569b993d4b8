// SPDX-License-Identifier: Apache-2.0
// State shared by the steps of planning: the options, the hosts' answers, the plan under
// construction, and its problems. The steps run one after the other and write to the plan and to
// the problems through these references. Not thread-safe; reads and writes nothing else.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"

namespace ivy {

struct PlanContext {
  const Options& options;
  const std::vector<HostAnswer>& answers;
  JobPlan& plan;
  std::vector<Diagnostic>& rejections;

  const HostFacts& facts(std::size_t host_index) const { return answers[host_index].facts; }
  const HostFacts& facts(const PlannedHost& host) const { return facts(host.host_index); }
  // Adds a rejection, which stops the launch after all steps have run. If the problem has no exit
  // code, it is kExitRejected.
  void reject(Diagnostic problem);
  // Adds a warning. A warning has no exit code.
  void warn(Diagnostic problem);
};

// Returns argv of the workers of one host: the interpreter and the path of a script may differ
// between hosts.
std::vector<std::string> worker_arguments(const Options& options, const HostFacts& facts);

// The names of hosts, at least one, by the text that describes them.
using HostsByText = std::map<std::string, std::vector<std::string>>;
// Groups the planned hosts by text_of(facts), so that one message covers all hosts with the same
// text. Leaves out hosts whose text is empty.
HostsByText hosts_by_text(const PlanContext& context,
                          const std::function<std::string(const HostFacts&)>& text_of);
// Returns the facts of the first of these planned hosts. names: not empty.
const HostFacts& first_facts(const PlanContext& context, const std::vector<std::string>& names);

}  // namespace ivy
