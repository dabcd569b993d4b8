// SPDX-License-Identifier: Apache-2.0
// Inputs for the variables of a job's workers. Values only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/job_plan.h"
#include "proto/contract/env.h"
#include "proto/wire/job.pb.h"

namespace ivy {

struct EnvironmentInputs {
  const Options* options = nullptr;
  const JobPlan* plan = nullptr;
  const std::vector<HostAnswer>* answers = nullptr;
  const Environment* caller = nullptr;    // The environment in which ivyrun was started.
  std::string started_in;                 // The directory in which ivyrun was started.
  Environment from_files;                 // The variables of the --env-file files.
  std::vector<std::string> interfaces;    // Per planned host: its interface towards host 0.
  std::set<std::string> shared_machines;  // shared_machines() of worker_environment.h.
  std::uint32_t generation = 0;
  std::optional<WorkerLimits> limits;  // Limits of the shell in which ivyrun was started.

  const HostFacts& facts(const PlannedHost& host) const {
    return (*answers)[host.host_index].facts;
  }
};

}  // namespace ivy
