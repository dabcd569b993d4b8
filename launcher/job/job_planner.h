// SPDX-License-Identifier: Apache-2.0
// Plans a job from its hosts' answers, and makes each host's part of the plan. Sets
// JobContext::plan. Thread: the loop's.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/plan/worker_environment.h"
#include "launcher/report/host_findings.h"

namespace ivy {

class JobPlanner {
 public:
  explicit JobPlanner(JobContext& job) : job_(job) {}

  // Takes the addresses of the name in --master-addr, or the reason why it has none.
  void master_found(const Result<std::vector<std::string>>& addresses) { master_ = addresses; }
  // Makes the plan. Returns false if that is impossible; the job has been rejected then.
  bool plan();
  // Makes the plan again after a host was lost. Workers keep the addresses if the first host is
  // still there. Returns false as plan() does.
  bool plan_without_excluded_hosts();

  // Plans a spare in place of the node with the most workers. Returns why it could not run them,
  // such as a missing program or fewer accelerators; empty: it could.
  std::string unfit_spare(std::size_t index) const;

  // The plan has changed since host_plans().
  bool is_new() const { return is_new_; }

  // --dry-run: returns the plan, or with --explain-env the workers' variables.
  Result<std::string> dry_run();
  // Returns one host's part of the plan, by its index in the plan.
  Result<HostPlan> host_plan(std::size_t index);
  // Returns each host's part of the plan, to be sent now. Fails if a part is larger than a frame.
  Result<std::vector<HostPlan>> host_plans();
  // Returns the lines that are printed before the workers start.
  Result<std::vector<std::string>> first_lines();

 private:
  Options planning_options() const;
  // Plans the nodes of the job, whose hosts and answers are ordered by node rank.
  Result<JobPlan> plan_nodes(const Options& options, const std::vector<HostAnswer>& answers,
                             std::vector<Diagnostic>& rejections) const;
  void leave_out_unfit_spares();
  void print_replacements(const std::vector<HostReplacement>& replacements);
  Examination examination() const;
  Result<std::string> doctor();
  // --healthy-hostfile: writes the file.
  Result<void> write_healthy_hosts(const std::vector<Finding>& findings) const;
  std::string dry_run_json(const std::vector<HostAnswer>& answers) const;
  // The answers must outlive the result.
  Result<EnvironmentInputs> inputs(const std::vector<HostAnswer>& answers);

  JobContext& job_;
  Result<std::vector<std::string>> master_ = std::vector<std::string>();
  bool is_new_ = false;
  // --doctor: reasons for which the job would have been rejected.
  std::vector<Diagnostic> rejections_;
  std::optional<Environment> from_files_;  // The variables of --env-file.
};

}  // namespace ivy
