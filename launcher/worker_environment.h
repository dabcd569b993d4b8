// One worker's variables, each with its reason. Pure; thread: any.
#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"
#include "launcher/plan.h"
#include "proto/env.h"
#include "proto/job.pb.h"
#include "proto/status.h"

namespace ivy {

struct EnvironmentInputs {
  const Options* options = nullptr;
  const JobPlan* plan = nullptr;
  const std::vector<HostAnswer>* answers = nullptr;
  const Environment* caller = nullptr;  // Where ivyrun was typed.
  Environment from_files;               // --env-file, already read.
  std::vector<std::string> interfaces;  // Per planned host: by which it reaches host 0.
  std::uint32_t generation = 0;
};

// -x K[=V] and the lines of --env-file ("K=V", "K", '#' comments). InvalidArgument with file:line.
Result<Environment> parse_env_file(std::string_view content, const std::string& path,
                                   const Environment& caller);
Result<Environment> parse_exports(const std::vector<std::string>& exports,
                                  const Environment& caller);

// The plan of one host, ready to be sent: arguments, directory, variables of the host and of each
// worker. On the launcher's own host the supervisor inherits the caller's environment, so only
// differences travel; on others the allow-listed variables travel too.
Result<HostPlan> make_host_plan(const EnvironmentInputs& inputs, const PlannedHost& host);

// One line that names (not values) what the caller exported in this shell and other hosts do not
// get; empty when there is nothing to say. login_environment: what a fresh login of this user has,
// approximated by a list of names that every login has.
std::string not_passed_line(const EnvironmentInputs& inputs);

}  // namespace ivy
