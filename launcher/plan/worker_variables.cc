#include "launcher/plan/worker_variables.h"

#include <algorithm>
#include <iterator>

#include "launcher/slurm/nodelist.h"

namespace ivy {

Environment slurm_host_variables(const JobPlan& plan, const PlannedHost& host) {
  std::vector<std::string> names;
  std::vector<int> counts;
  for (const PlannedHost& each : plan.hosts) {
    names.push_back(each.name);
    counts.push_back(static_cast<int>(each.workers.size()));
  }
  std::string ranks;
  for (const PlannedWorker& worker : host.workers)
    ranks += (ranks.empty() ? "" : ",") + std::to_string(worker.rank);
  const std::string world = std::to_string(plan.world_size);
  const std::string per_node = node_counts_text(counts);
  const std::string num_nodes = std::to_string(plan.hosts.size());
  Environment variables = {
      {"SLURM_NODEID", std::to_string(host.node_rank)},
      {"SLURM_GTIDS", ranks},
      {"SLURM_NTASKS", world},
      {"SLURM_NPROCS", world},
      {"SLURM_TASKS_PER_NODE", per_node},
      {"SLURM_STEP_NODELIST", nodelist_text(names)},
      {"SLURM_NNODES", num_nodes},
      {"SLURM_STEP_NUM_NODES", num_nodes},
      {"SLURM_STEP_NUM_TASKS", world},
      {"SLURM_STEP_TASKS_PER_NODE", per_node},
  };
  // One number has to be true of every host; else Slurm does not set it either.
  if (plan.same_local_size)
    set_variable(variables, "SLURM_NTASKS_PER_NODE", std::to_string(host.workers.size()));
  return variables;
}

Environment slurm_rank_variables(const PlannedWorker& worker) {
  return {{"SLURM_PROCID", std::to_string(worker.rank)},
          {"SLURM_LOCALID", std::to_string(worker.local_rank)}};
}

bool is_of_slurm_job(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_"};
  constexpr std::string_view kNames[] = {"SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_CONF",
                                         "SLURM_RESTART_COUNT"};
  if (name == "SLURM_JOB_GPUS") return false;
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace ivy
