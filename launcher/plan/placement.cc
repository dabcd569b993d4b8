// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/placement.h"

#include <algorithm>
#include <set>

#include "launcher/plan/plan.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

std::string_view first_label(std::string_view name) { return name.substr(0, name.find('.')); }

// Returns the name under which the allocation lists the host that the user wrote as `written`: the
// same name, any name of this machine, or the same name with or without a domain. Returns null if
// the host is not in the allocation.
const std::string* name_in(const Allocation& allocation, const std::string& written,
                           const std::function<bool(const std::string&)>& is_this_machine) {
  const std::vector<std::string>& hosts = allocation.hosts;
  const auto same = std::find(hosts.begin(), hosts.end(), written);
  if (same != hosts.end()) return &*same;
  if (is_this_machine(written)) {
    if (allocation.own) return &hosts[*allocation.own];
    const auto here = std::find_if(hosts.begin(), hosts.end(), is_this_machine);
    return here == hosts.end() ? nullptr : &*here;
  }
  const auto alike = std::find_if(hosts.begin(), hosts.end(), [&](const std::string& host) {
    const bool one_is_short =
        host.find('.') == std::string::npos || written.find('.') == std::string::npos;
    return one_is_short && first_label(host) == first_label(written);
  });
  return alike == hosts.end() ? nullptr : &*alike;
}

Error not_allocated_error(const Allocation& allocation, const Options& options,
                          const std::vector<std::string>& names) {
  return Error{Code::kInvalidArgument,
               options.host_source + ": " + fold_host_names(names) + " " +
                   (names.size() == 1 ? "is" : "are") + " not in " + allocation.name + " (" +
                   fold_host_names(allocation.hosts) + ")",
               "leave " + options.host_source + " out to use all of them, or name some of them\n" +
                   "use --transport ssh for hosts outside the allocation"};
}

Result<void> take_subset(const Allocation& allocation,
                         const std::function<bool(const std::string&)>& is_this_machine,
                         Options& options) {
  std::vector<std::string> unknown;
  std::set<std::string> taken;
  for (Host& host : options.hosts) {
    if (allocation.slurm && (!host.user.empty() || host.port != 0))
      return Error{Code::kInvalidArgument,
                   options.host_source + ": " + host.name + " is written with " +
                       (host.port != 0 ? "a port" : "a user") + ", which only SSH supports; in " +
                       allocation.name + " Slurm starts ivyrun on the hosts",
                   "write only its name, or add --transport ssh"};
    const std::string* name = name_in(allocation, host.name, is_this_machine);
    if (name == nullptr) {
      unknown.push_back(host.name);
      continue;
    }
    if (!taken.insert(*name).second)
      return Error{
          Code::kInvalidArgument,
          options.host_source + ": " + host.name + " is " + *name + ", which is already listed",
          "list it only once"};
    host.name = *name;
  }
  if (!unknown.empty()) return not_allocated_error(allocation, options, unknown);
  options.host_source += " within " + allocation.name;
  return {};
}

}  // namespace

bool ignores_allocation(const Options& options) {
  if (options.transport == TransportChoice::kLocal) return true;
  if (options.hosts.empty()) return false;
  return options.hosts.front().fake || ignores_allocation(options.transport);
}

Result<void> place_in_allocation(const Allocation& allocation,
                                 const std::function<bool(const std::string&)>& is_this_machine,
                                 Options& options) {
  options.allocation = allocation.slurm;
  if (!allocation.slurm) options.batch_job = allocation.name;
  if (!options.hosts.empty()) return take_subset(allocation, is_this_machine, options);
  options.host_source = allocation.name;
  for (const std::string& name : allocation.hosts) {
    Host host;
    host.name = name;
    host.origin = options.host_source;
    options.hosts.push_back(std::move(host));
  }
  return {};
}

Error started_as_tasks_error(const SlurmAllocation& allocation, const std::string& command) {
  IVY_ASSERT(allocation.step.has_value());
  return Error{Code::kInvalidArgument,
               "srun started ivyrun " + std::to_string(allocation.step->tasks) + " times (" +
                   allocation.name() + ", step " + allocation.step->id +
                   "): each of them would start the whole job",
               "run it inside sbatch or salloc, without srun: " + command};
}

}  // namespace ivy
