// Plans a job from what its hosts have answered, and says to each host what it has to start.
// Changes the job's plan. Thread: the loop's.
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
  // A host is gone. Where the first host is the same, so are the addresses that workers are given.
  bool plan_without_the_gone();

  // The hosts have not been told this plan yet.
  bool is_new() const { return is_new_; }

  // --dry-run: the plan, or with --explain-env the workers' variables.
  Result<std::string> dry_run();
  // The plan of each host in it, to be told to them now. What is larger than a frame is an error.
  Result<std::vector<HostPlan>> host_plans();
  // What is printed before the workers start.
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
  std::vector<Diagnostic> refusals_;       // --doctor: what would have refused the job.
  std::optional<Environment> from_files_;  // What the files of --env-file said.
};

}  // namespace ivy
