// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/framework_variables.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/exports.h"
#include "launcher/options/tf_roles.h"
#include "launcher/plan/worker_ports.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr const char* kMlxFile = "mlx-hosts.json";
constexpr const char* kPaddleBackend = "PADDLE_DISTRI_BACKEND";

// Horovod and DeepSpeed number the hosts that have a worker with the same local rank.
std::pair<int, int> cross_rank_of(const JobPlan& plan, const PlannedHost& host,
                                  const PlannedWorker& worker) {
  int rank_on_axis = 0;
  int size = 0;
  for (const PlannedHost& other : plan.hosts) {
    if (static_cast<int>(other.workers.size()) <= worker.local_rank) continue;
    if (other.node_rank < host.node_rank) ++rank_on_axis;
    ++size;
  }
  return {rank_on_axis, size};
}

Environment paddle_variables(const EnvironmentInputs& inputs, const PlannedWorker& worker) {
  const JobPlan& plan = *inputs.plan;
  const std::vector<std::string> addresses = rank_addresses(inputs);
  const std::string rank = std::to_string(worker.rank);
  return {{"PADDLE_TRAINER_ID", rank},
          {"PADDLE_GLOBAL_RANK", rank},
          {"PADDLE_LOCAL_RANK", std::to_string(worker.local_rank)},
          {"PADDLE_RANK_IN_NODE", std::to_string(worker.local_rank)},
          {"PADDLE_TRAINERS_NUM", std::to_string(plan.world_size)},
          {"PADDLE_GLOBAL_SIZE", std::to_string(plan.world_size)},
          {"PADDLE_NNODES", std::to_string(plan.hosts.size())},
          {"PADDLE_MASTER", with_port(plan.master_address, plan.coordinator_port)},
          {"PADDLE_TRAINER_ENDPOINTS", joined(addresses, ",")},
          {"PADDLE_CURRENT_ENDPOINT",
           addresses.empty() ? "" : addresses[static_cast<std::size_t>(worker.rank)]}};
}

Environment lightgbm_variables(const EnvironmentInputs& inputs, const PlannedWorker& worker) {
  const std::vector<std::string> addresses = rank_addresses(inputs);
  if (addresses.empty()) return {};
  const std::string& own = addresses[static_cast<std::size_t>(worker.rank)];
  return {{"IVY_MACHINES", joined(addresses, ",")},
          {"IVY_LISTEN_PORT", own.substr(own.rfind(':') + 1)}};
}

Environment horovod_variables(const EnvironmentInputs& inputs, const PlannedHost& host,
                              const PlannedWorker& worker) {
  const auto [cross_rank, cross_size] = cross_rank_of(*inputs.plan, host, worker);
  return {{"HOROVOD_RANK", std::to_string(worker.rank)},
          {"HOROVOD_SIZE", std::to_string(inputs.plan->world_size)},
          {"HOROVOD_LOCAL_RANK", std::to_string(worker.local_rank)},
          {"HOROVOD_LOCAL_SIZE", std::to_string(host.workers.size())},
          {"HOROVOD_CROSS_RANK", std::to_string(cross_rank)},
          {"HOROVOD_CROSS_SIZE", std::to_string(cross_size)}};
}

// The store serves Horovod's rendezvous: it speaks Horovod's HTTP on the port of torch's dialect.
Environment horovod_host_variables(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const JobPlan& plan = *inputs.plan;
  return {{"HOROVOD_HOSTNAME", host.name},
          {"HOROVOD_CONTROLLER", "gloo"},
          {"HOROVOD_CPU_OPERATIONS", "gloo"},
          {"HOROVOD_GLOO_RENDEZVOUS_ADDR", plan.master_address},
          {"HOROVOD_GLOO_RENDEZVOUS_PORT", std::to_string(plan.master_port)}};
}

std::string tf_config(const EnvironmentInputs& inputs, const PlannedWorker& worker) {
  const std::vector<std::string> addresses = rank_addresses(inputs);
  const std::vector<TfTask> tasks =
      tf_tasks(inputs.options->tf_roles, static_cast<int>(addresses.size()));
  boost::json::object cluster;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    // TensorFlow's evaluator only observes and is not part of the cluster.
    if (tasks[i].type == "evaluator") continue;
    boost::json::value& list = cluster[tasks[i].type];
    if (list.is_null()) list.emplace_array();
    list.as_array().push_back(boost::json::value(addresses[i]));
  }
  const TfTask& own = tasks[static_cast<std::size_t>(worker.rank)];
  const boost::json::object config = {{"cluster", cluster},
                                      {"task", {{"type", own.type}, {"index", own.index}}}};
  return boost::json::serialize(config);
}

}  // namespace

Environment framework_variables(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const JobPlan& plan = *inputs.plan;
  Environment variables = {
      {"LOCAL_SIZE", std::to_string(host.workers.size())},
      // No script opens both cupyx's server and JAX's coordinator.
      {"CUPYX_DISTRIBUTED_HOST", plan.master_address},
      {"CUPYX_DISTRIBUTED_PORT", std::to_string(plan.coordinator_port)},
  };
  if (inputs.options->profile == Profile::kHorovod)
    set_variables(variables, horovod_host_variables(inputs, host));
  // Like Paddle's own launcher: on the CPU its collectives need this setting.
  if (inputs.options->profile == Profile::kPaddle && inputs.facts(host).accelerators() == 0 &&
      find_variable(*inputs.caller, kPaddleBackend) == nullptr)
    set_variable(variables, kPaddleBackend, "gloo");
  if (inputs.options->profile == Profile::kMlx) {
    const HostFacts& facts = inputs.facts(host);
    set_variable(variables, "MLX_HOSTFILE", facts.job_directory() + "/" + kMlxFile);
    set_variable(variables, "MLX_WORLD_SIZE", std::to_string(plan.world_size));
    // Read by its NCCL backend.
    set_variable(variables, "NCCL_HOST_IP", plan.master_address);
    set_variable(variables, "NCCL_PORT", std::to_string(plan.coordinator_port));
  }
  return variables;
}

Environment framework_rank_variables(const EnvironmentInputs& inputs, const PlannedHost& host,
                                     const PlannedWorker& worker) {
  const auto [cross_rank, cross_size] = cross_rank_of(*inputs.plan, host, worker);
  Environment variables = {{"CROSS_RANK", std::to_string(cross_rank)},
                           {"CROSS_SIZE", std::to_string(cross_size)},
                           {"PJRT_LOCAL_PROCESS_RANK", std::to_string(worker.local_rank)}};
  switch (inputs.options->profile) {
    case Profile::kTensorflow:
      // Absent in a dry run, because its hosts have reserved no ports.
      if (!rank_addresses(inputs).empty())
        set_variable(variables, "TF_CONFIG", tf_config(inputs, worker));
      break;
    case Profile::kPaddle:
      set_variables(variables, paddle_variables(inputs, worker));
      break;
    case Profile::kLightgbm:
      set_variables(variables, lightgbm_variables(inputs, worker));
      break;
    case Profile::kHorovod:
      set_variables(variables, horovod_variables(inputs, host, worker));
      break;
    case Profile::kMlx:
      set_variable(variables, "MLX_RANK", std::to_string(worker.rank));
      break;
    default:
      break;
  }
  return variables;
}

void add_framework_files(const EnvironmentInputs& inputs, HostPlan& plan) {
  if (inputs.options->profile != Profile::kMlx) return;
  // Each rank has a list of addresses, because it may have several.
  boost::json::array ranks;
  for (const std::string& address : rank_addresses(inputs))
    ranks.push_back(boost::json::array{boost::json::value(address)});
  NamedText& file = *plan.add_files();
  file.set_name(kMlxFile);
  file.set_text(boost::json::serialize(ranks));
}

}  // namespace ivy
