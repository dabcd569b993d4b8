// SPDX-License-Identifier: Apache-2.0
// Plans a job from its hosts' answers, and makes the part of the plan that each host gets. Changes
// the job's plan. Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/job_context.h"
#include "launcher/plan/worker_environment.h"
#include "launcher/report/host_findings.h"

namespace ivy {

class JobPlanner {
 public:
  explicit JobPlanner(JobContext& job) : job_(job) {}

  // --master-addr is a name: these are its addresses, or why there are none.
  void master_found(const Result<std::vector<std::string>>& addresses) { master_ = addresses; }
  // False: there is none, and the job has been refused.
  bool plan();
  // A host is gone. If the first host stays the same, so do the addresses that workers are given.
  bool plan_without_the_gone();

  // This plan has not been sent to the hosts yet.
  bool is_new() const { return is_new_; }

  // --dry-run: the plan, or with --explain-env the workers' variables.
  Result<std::string> dry_run();
  // The part of the plan for each host, to be sent now. Fails if one is larger than a frame.
  Result<std::vector<HostPlan>> host_plans();
  // The lines that are printed before the workers start.
  Result<std::vector<std::string>> first_lines();

 private:
  Options planning_options() const;
  Examination examination() const;
  Result<std::string> doctor();
  // Writes the file of --healthy-hostfile.
  Result<void> write_healthy_hosts(const std::vector<Finding>& findings) const;
  std::string dry_run_json(const std::vector<HostAnswer>& answers) const;
  // The answers must outlive the inputs.
  Result<EnvironmentInputs> inputs(const std::vector<HostAnswer>& answers);

  JobContext& job_;
  Result<std::vector<std::string>> master_ = std::vector<std::string>();
  bool is_new_ = false;
  std::vector<Diagnostic> refusals_;       // --doctor: the reasons that would have refused the job.
  std::optional<Environment> from_files_;  // The variables in the files of --env-file.
};

}  // namespace ivy
