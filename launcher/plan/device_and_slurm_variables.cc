// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/device_and_slurm_variables.h"

#include <algorithm>
#include <iterator>

#include "launcher/slurm/nodelist.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/text.h"

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
  // The number must be true for every host; otherwise Slurm does not set it either.
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

namespace {

// Returns the entry of a mask for the accelerator with this index.
std::string entry_of(const HostFacts& facts, int index, bool by_uuid) {
  if (index >= facts.devices_size()) return std::to_string(index);
  const Accelerator& device = facts.devices(index);
  const bool is_number = device.mask_entry().find_first_not_of("0123456789") == std::string::npos;
  if (by_uuid && is_number && !device.uuid().empty()) return device.uuid();
  return device.mask_entry();
}

std::string mask_variable(const HostFacts& facts) {
  const std::string& mask_variable = facts.device_view().mask_variable();
  if (!mask_variable.empty()) return mask_variable;
  return std::string(device_vendor(facts.accelerator_source()).mask);
}

}  // namespace

Environment host_device_variables(const PlannedHost& host, const HostFacts& facts) {
  Environment variables;
  if (host.devices.empty()) return variables;
  const DeviceVendor& vendor = device_vendor(facts.accelerator_source());
  if (!facts.accelerator_source().empty() && !vendor.order.empty())
    variables.push_back({std::string(vendor.order_variable), std::string(vendor.order)});
  if (!host.has_part_of_devices || host.sees_own) return variables;
  std::string mask;
  for (const int index : host.devices) add_item(mask, entry_of(facts, index, false));
  variables.push_back({mask_variable(facts), mask});
  return variables;
}

Environment worker_device_variables(const Options& options, const PlannedHost& host,
                                    const PlannedWorker& worker, const HostFacts& facts,
                                    bool by_uuid) {
  Environment variables;
  std::string ordinals;
  std::string uuids;
  std::string addresses;
  std::string mask;
  for (std::size_t i = 0; i < worker.devices.size(); ++i) {
    const int device = worker.devices[i];
    const int index = host.devices[static_cast<std::size_t>(device)];
    add_item(ordinals, std::to_string(host.sees_own ? static_cast<int>(i) : device));
    add_item(mask, entry_of(facts, index, by_uuid));
    if (index >= facts.devices_size()) continue;
    const Accelerator& accelerator = facts.devices(index);
    add_item(uuids, accelerator.uuid());
    add_item(addresses, accelerator.bdf());
  }
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) variables.push_back({name, value});
  };
  add("IVY_DEVICE_ORDINAL", ordinals);
  add("IVY_DEVICE_UUID", uuids);
  add("IVY_DEVICE_BDF", addresses);
  if (host.sees_own) {
    add(mask_variable(facts), mask);
    // The local rank is an index into the devices that a worker sees (torchrun
    // --virtual-local-rank).
    add("LOCAL_RANK", "0");
  }
  // Do not make JAX divide devices that workers share.
  if (!host.shares_devices) add("JAX_LOCAL_DEVICE_IDS", ordinals);
  if (mask.empty()) {
    // Accelerators of an unknown vendor: the ones that would belong to this worker.
    const int each = options.gpus_per_proc.value_or(1);
    for (int i = 0; i < each; ++i) add_item(mask, std::to_string(worker.local_rank * each + i));
  }
  for (const std::string& name : options.device_env) add(name, mask);
  return variables;
}

}  // namespace ivy
