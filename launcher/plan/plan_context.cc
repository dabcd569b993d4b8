// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/plan_context.h"

#include <algorithm>
#include <utility>

#include "proto/contract/exit_code.h"

namespace ivy {

void PlanContext::reject(Diagnostic problem) {
  if (problem.exit_code == 0) problem.exit_code = kExitRejected;
  rejections.push_back(std::move(problem));
}

void PlanContext::warn(Diagnostic problem) {
  IVY_ASSERT(problem.exit_code == 0);
  problem.severity = Severity::kWarning;
  plan.warnings.push_back(std::move(problem));
}

std::vector<std::string> worker_arguments(const Options& options, const HostFacts& facts) {
  IVY_ASSERT(!options.command.empty());
  std::vector<std::string> arguments;
  if (options.program_kind == ProgramKind::kModule) {
    arguments = {facts.interpreter(), "-u", "-m", options.command.front()};
  } else if (facts.program_is_script()) {
    arguments = {facts.interpreter(), "-u", facts.program_path()};
  } else {
    arguments = {facts.program_path()};
  }
  arguments.insert(arguments.end(), options.command.begin() + 1, options.command.end());
  return arguments;
}

HostsByText hosts_by_text(const PlanContext& context,
                          const std::function<std::string(const HostFacts&)>& text_of) {
  HostsByText result;
  for (const PlannedHost& host : context.plan.hosts) {
    const std::string text = text_of(context.facts(host));
    if (!text.empty()) result[text].push_back(host.name);
  }
  return result;
}

const HostFacts& first_facts(const PlanContext& context, const std::vector<std::string>& names) {
  const auto host =
      std::find_if(context.plan.hosts.begin(), context.plan.hosts.end(),
                   [&](const PlannedHost& planned) { return planned.name == names.front(); });
  IVY_ASSERT(host != context.plan.hosts.end());
  return context.facts(*host);
}

}  // namespace ivy
