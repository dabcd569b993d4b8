// SPDX-License-Identifier: Apache-2.0
// Shared by the steps of planning: the options, the hosts' answers, the plan under construction,
// and the objections to it. Pure; thread: any.
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

// Why a step says something, and what the user can do; exit_code counts for refusals.
struct PlanAdvice {
  std::string cause;
  std::string fix;
  int exit_code = kExitRefused;
};

struct PlanContext {
  const Options& options;
  const std::vector<HostAnswer>& answers;
  JobPlan& plan;
  std::vector<Diagnostic>& refusals;

  const HostFacts& facts(std::size_t host_index) const { return answers[host_index].facts; }
  const HostFacts& facts(const PlannedHost& host) const { return facts(host.host_index); }
  // A refusal stops the launch, after every step has said what it has to say.
  void refuse(std::string id, std::string what, std::string where, PlanAdvice advice) {
    refusals.push_back(Diagnostic{Severity::kError, std::move(id), std::move(what),
                                  std::move(where), std::move(advice.cause), std::move(advice.fix),
                                  advice.exit_code});
  }
  void warn(std::string id, std::string what, std::string where, PlanAdvice advice) {
    plan.warnings.push_back(Diagnostic{Severity::kWarning, std::move(id), std::move(what),
                                       std::move(where), std::move(advice.cause),
                                       std::move(advice.fix), 0});
  }
};

// The hosts that said the same thing, for one message about all of them. Empty texts are left out.
using Sayings = std::map<std::string, std::vector<std::string>>;
Sayings sayings(const PlanContext& context,
                const std::function<std::string(const HostFacts&)>& say);
// Facts of the first of these planned hosts.
const HostFacts& first_facts(const PlanContext& context, const std::vector<std::string>& names);

// Refuses what cannot work (working directory, program, interpreter, script, arguments, ranks to
// show); hosts with the same trouble share one refusal. Different versions of the interpreter, and
// some absent ranks to show, are only warnings. plan.arguments and plan.hosts are final.
void check_plan(PlanContext& context);

// Refuses workers that would share the few devices which --gpus-per-task leaves visible (without
// --oversubscribe), and warns where it hides some from workers that have enough, and where the job
// was given devices and a host shows none. Nothing outside an allocation.
void check_allocated_devices(PlanContext& context);

}  // namespace ivy
