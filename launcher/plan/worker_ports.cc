// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/worker_ports.h"

#include <algorithm>

#include "launcher/options/option_values.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/socket_address.h"

namespace ivy {
namespace {

bool has_port_for_each_rank(const Options& options) {
  switch (options.profile) {
    case Profile::kTensorflow:
    case Profile::kPaddle:
    case Profile::kMlx:
    case Profile::kLightgbm:
      return true;
    default:
      return false;
  }
}

bool is_written_as_ipv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

void check_tf_roles(PlanContext& context) {
  const int min_workers = min_ranks(context.options.tf_roles);
  if (context.plan.world_size >= min_workers) return;
  context.reject(
      {.id = "IVY-P001",
       .what = "--tf-roles lists " + counted(static_cast<std::size_t>(min_workers), "task") +
               ", and " +
               (context.plan.world_size == 1
                    ? "there is 1 worker"
                    : "there are " + std::to_string(context.plan.world_size) + " workers"),
       .fix = "start more workers (-n, --nproc-per-node), or list fewer tasks",
       .exit_code = kExitUsage});
}

}  // namespace

PortWish worker_port_wish(const Options& options) {
  PortWish wish;
  wish.set_more(static_cast<std::uint32_t>(port_count(options.app_spec)));
  if (!has_port_for_each_rank(options)) return wish;
  wish.set_each(1);
  int largest = options.num_proc.value_or(0);
  if (options.per_host.kind == PerHost::Kind::kNumber) largest = options.per_host.number;
  for (const Host& host : options.hosts) largest = std::max(largest, host.slots.value_or(0));
  wish.set_workers(static_cast<std::uint32_t>(largest));
  return wish;
}

void check_worker_ports(PlanContext& context) {
  check_tf_roles(context);
  const PortWish wish = worker_port_wish(context.options);
  for (const PlannedHost& host : context.plan.hosts) {
    const HostFacts& facts = context.facts(host);
    const std::size_t wanted = host.workers.size() * wish.each() + wish.more();
    const auto kept = static_cast<std::size_t>(facts.worker_ports_size());
    if (kept >= wanted) continue;
    context.reject({.id = "IVY-P009",
                    .what = (context.options.app == App::kRoles
                                 ? "--app " + context.options.app_spec.name
                                 : "-B " + profile_name(context.options.profile)) +
                            ": " + std::to_string(kept) + " of " + counted(wanted, "port") +
                            " could be reserved for the workers",
                    .where = host.name,
                    .cause = facts.reserved_port_error(),
                    .fix = "use another --port-range, or fewer workers"});
  }
}

std::string host_address(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const std::string& first = inputs.plan->master_address;
  if (host.node_rank == 0 || is_loopback(first)) return first;
  const auto index = static_cast<std::size_t>(host.node_rank);
  const std::string route = index < inputs.interfaces.size() ? inputs.interfaces[index] : "";
  const HostAnswer& answer = (*inputs.answers)[host.host_index];
  for (const Address& address : answer.facts.addresses())
    if (address.interface() == route &&
        is_written_as_ipv6(address.address()) == is_written_as_ipv6(first))
      return address.address();
  if (!answer.peer_address.empty() && !is_loopback(answer.peer_address)) return answer.peer_address;
  for (const Address& address : answer.facts.addresses())
    if (!address.loopback() && is_written_as_ipv6(address.address()) == is_written_as_ipv6(first))
      return address.address();
  return first;
}

std::vector<std::string> rank_addresses(const EnvironmentInputs& inputs) {
  std::vector<std::string> all;
  // A host's first ports are those of the roles (app_plan.cc).
  const int first = port_count(inputs.options->app_spec);
  for (const PlannedHost& host : inputs.plan->hosts) {
    const HostFacts& facts = inputs.facts(host);
    const std::string address = host_address(inputs, host);
    for (std::size_t i = 0; i < host.workers.size(); ++i) {
      const int port = first + static_cast<int>(i);
      if (port >= facts.worker_ports_size()) return {};
      all.push_back(with_port(address, static_cast<std::uint16_t>(facts.worker_ports(port))));
    }
  }
  return all;
}

}  // namespace ivy
