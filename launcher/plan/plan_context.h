// SPDX-License-Identifier: Apache-2.0
// State shared by the steps of planning: the options, the hosts' answers, the plan under
// construction, and its problems. Pure; thread: any.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/exit_code.h"

namespace ivy {

// The cause of a problem and what the user can do; exit_code is used for rejections.
struct PlanAdvice {
  std::string cause;
  std::string fix;
  int exit_code = kExitRejected;
};

struct PlanContext {
  const Options& options;
  const std::vector<HostAnswer>& answers;
  JobPlan& plan;
  std::vector<Diagnostic>& rejections;

  const HostFacts& facts(std::size_t host_index) const { return answers[host_index].facts; }
  const HostFacts& facts(const PlannedHost& host) const { return facts(host.host_index); }
  // Adds a rejection, which stops the launch after all steps have run.
  void reject(std::string id, std::string what, std::string where, PlanAdvice advice) {
    rejections.push_back(Diagnostic{Severity::kError, std::move(id), std::move(what),
                                    std::move(where), std::move(advice.cause),
                                    std::move(advice.fix), advice.exit_code});
  }
  void warn(std::string id, std::string what, std::string where, PlanAdvice advice) {
    plan.warnings.push_back(Diagnostic{Severity::kWarning, std::move(id), std::move(what),
                                       std::move(where), std::move(advice.cause),
                                       std::move(advice.fix), 0});
  }
};

// Groups the hosts with the same text, for one message about all of them. Leaves out empty texts.
using HostsByText = std::map<std::string, std::vector<std::string>>;
HostsByText hosts_by_text(const PlanContext& context,
                          const std::function<std::string(const HostFacts&)>& text_of);
// Returns the facts of the first of these planned hosts.
const HostFacts& first_facts(const PlanContext& context, const std::vector<std::string>& names);

// Rejects jobs that cannot work (working directory, program, interpreter, script, arguments, ranks
// to show); hosts with the same problem share one rejection. Different versions of the interpreter,
// and some missing ranks to show, only cause warnings. plan.arguments and plan.hosts are final.
void check_plan(PlanContext& context);

// Rejects workers that would share the few devices that --gpus-per-task leaves visible (without
// --oversubscribe). Warns if that option hides devices from workers that have enough, and if the
// job was allocated devices but a host shows none. Does nothing outside an allocation.
void check_allocated_devices(PlanContext& context);

}  // namespace ivy
