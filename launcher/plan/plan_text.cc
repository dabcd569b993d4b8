// SPDX-License-Identifier: Apache-2.0
// The plan as text: one line at the start of a job, and the table of --dry-run.
#include <algorithm>

#include "launcher/plan/plan.h"
#include "launcher/plan/plan_context.h"
#include "launcher/plan/topology_order.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

std::string rank_range(const PlannedHost& host) {
  const int first = host.workers.front().rank;
  const int last = host.workers.back().rank;
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

TextRow host_row(const PlannedHost& host, const HostAnswer& answer) {
  const HostFacts& facts = answer.facts;
  const std::string accelerators =
      facts.accelerators() == 0
          ? "-"
          : std::to_string(facts.accelerators()) + " " + facts.accelerator_source();
  return {
      host.name,
      std::to_string(host.node_rank),
      rank_range(host),
      transport_name(answer.transport),
      answer.peer_address.empty() ? "-" : answer.peer_address,
      facts.user(),
      std::to_string(facts.cores()),
      accelerators,
      facts.architecture(),
      facts.interpreter().empty() ? "-" : facts.interpreter() + " " + facts.interpreter_version()};
}

// Returns ", by agent", or ", 3 by agent, 1 by ssh" if hosts differ; empty if this is the only
// machine.
std::string transports_text(const JobPlan& plan) {
  std::vector<std::pair<Transport, int>> counts;
  for (const PlannedHost& host : plan.hosts) {
    auto known = std::find_if(counts.begin(), counts.end(),
                              [&](const auto& count) { return count.first == host.transport; });
    if (known == counts.end()) known = counts.insert(counts.end(), {host.transport, 0});
    ++known->second;
  }
  if (counts.empty() || (counts.size() == 1 && counts.front().first == Transport::kLocal))
    return "";
  if (counts.size() == 1) return ", by " + transport_name(counts.front().first);
  std::string text;
  for (const auto& [transport, count] : counts)
    text += ", " + std::to_string(count) + (transport == Transport::kLocal ? " " : " by ") +
            transport_name(transport);
  return text;
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

// Adds a column for --map-by after the others.
void add_cell(const JobPlan& plan, MapChoice choice, const std::string& cell, TextRow& row) {
  if (plan.map_by == choice) row.push_back(or_dash(cell));
}

void add_new_item(std::string& list, const std::string& item) {
  const std::vector<std::string_view> items = parts_of(list, ',');
  if (std::find(items.begin(), items.end(), item) == items.end()) add_item(list, item);
}

TextRow worker_row(const PlannedHost& host, const PlannedWorker& worker, const HostFacts& facts) {
  std::string devices;
  std::string addresses;
  std::string uuids;
  std::string interfaces;
  for (const int device : worker.devices) {
    const int index = host.devices[static_cast<std::size_t>(device)];
    if (index >= facts.devices_size()) {
      add_item(devices, std::to_string(index));
      continue;
    }
    const Accelerator& accelerator = facts.devices(index);
    add_item(devices, accelerator.mask_entry());
    add_item(addresses, accelerator.bdf());
    add_item(uuids, accelerator.uuid());
    add_new_item(interfaces, accelerator.interface());
  }
  return {std::to_string(worker.rank),
          host.name,
          std::to_string(worker.local_rank),
          or_dash(devices),
          or_dash(addresses),
          or_dash(uuids),
          worker.cores.empty() ? "any" : core_list_text(worker.cores),
          worker.memory_node ? std::to_string(*worker.memory_node) : "-",
          or_dash(interfaces)};
}

std::string switches_of(const PlannedHost& host, const PlannedWorker& worker,
                        const HostFacts& facts) {
  std::string switches;
  for (const int device : worker.devices) {
    const int index = host.devices[static_cast<std::size_t>(device)];
    if (index >= facts.devices_size()) continue;
    add_new_item(switches, RemoteText(facts.devices(index).pci_switch()).line());
  }
  return switches;
}

std::string view_line(const PlannedHost& host, const HostFacts& facts) {
  const DeviceView& view = facts.device_view();
  std::string line = "accelerators of " + host.name + ": " + std::to_string(facts.accelerators()) +
                     " of " + std::to_string(view.present()) + " visible";
  if (!view.mask().empty()) line += " (" + RemoteText(view.mask()).line() + ")";
  if (!view.source().empty()) line += "; known by " + RemoteText(view.source()).line();
  if (host.sees_own) line += "; each worker sees only its own";
  line += "\n";
  for (const std::string& note : view.notes()) line += "  " + RemoteText(note).line() + "\n";
  return line;
}

// Returns a row for each rank with its accelerators and processors, and each host's sources. Empty
// if no worker has any.
std::string device_table(const JobPlan& plan, const std::vector<HostAnswer>& answers) {
  std::vector<TextRow> rows = {{"rank", "host", "local rank", "accelerator", "address", "UUID",
                                "processors", "NUMA", "near interface"}};
  add_cell(plan, MapChoice::kSwitch, "PCI switch", rows.back());
  std::string views;
  bool any = false;
  for (const PlannedHost& host : plan.hosts) {
    const HostFacts& facts = answers[host.host_index].facts;
    if (facts.has_device_view()) views += view_line(host, facts);
    for (const PlannedWorker& worker : host.workers) {
      any = any || !worker.devices.empty() || !worker.cores.empty();
      rows.push_back(worker_row(host, worker, facts));
      add_cell(plan, MapChoice::kSwitch, switches_of(host, worker, facts), rows.back());
    }
  }
  return views + (any ? text_columns(rows) : "");
}

// Lists the addresses on which the job's own processes listen, and the ports reserved for workers.
std::string listening_lines(const Options& options, const JobPlan& plan) {
  const std::string& first = plan.hosts.front().name;
  std::string out = "listens: " + with_port(plan.master_address, plan.master_port);
  if (plan.store_port == 0) {
    out += " (MASTER_ADDR and MASTER_PORT: reserved on " + first +
           ", opened by rank 0's framework; no other port is opened)\n";
  } else {
    out += " (the store on " + first + ": MASTER_ADDR and MASTER_PORT of torch)\n";
    if (plan.hosts.size() > 1 && plan.master_address != "127.0.0.1")
      out += "         and the same ports on 127.0.0.1\n";
    out += "listens: " + with_port(plan.master_address, plan.store_port) +
           " (the store, for clients that know the job's token)\n";
  }
  return out + "reserved: " + with_port(plan.master_address, plan.coordinator_port) +
         (options.app == App::kJaxService
              ? " (for JAX's coordination service: --app jax-service)\n"
              : " (for the coordinator of JAX and Keras, opened by rank 0)\n");
}

// Returns the workers' command, with a line for each host if they differ.
std::string command_lines(const Options& options, const JobPlan& plan,
                          const std::vector<HostAnswer>& answers) {
  std::string lines;
  bool is_same = true;
  for (const PlannedHost& host : plan.hosts) {
    const std::vector<std::string> arguments =
        worker_arguments(options, answers[host.host_index].facts);
    is_same = is_same && arguments == plan.arguments;
    lines +=
        "worker on " + host.name + ": " + RemoteText(quoted_arguments(arguments)).line() + "\n";
  }
  if (!is_same) return lines;
  return "worker: " + RemoteText(quoted_arguments(plan.arguments)).line() + "\n";
}

std::string spares_text(const JobPlan& plan) {
  if (plan.spares.empty()) return "";
  return ", " + counted(plan.spares.size(), "spare") + ": " + fold_host_names(plan.spares);
}

}  // namespace

std::string plan_line(const JobPlan& plan) {
  std::string line = counted(plan.hosts.size(), "host");
  if (plan.same_local_size && !plan.hosts.empty()) {
    line += " x " + std::to_string(plan.hosts.front().workers.size()) + " = ";
  } else {
    line += ", ";
  }
  return line + counted(static_cast<std::size_t>(plan.world_size), "rank") + " (" + plan.rule +
         ")" + transports_text(plan) + spares_text(plan) +
         (plan.container_text.empty() ? "" : ", " + plan.container_text) +
         (plan.device_text.empty() ? "" : ", " + plan.device_text);
}

std::string plan_table(const Options& options, const JobPlan& plan,
                       const std::vector<HostAnswer>& answers) {
  std::string out = "plan: " + plan_line(plan) + "\n";
  if (!options.host_source.empty()) out += "hosts from: " + options.host_source + "\n";
  std::vector<TextRow> rows = {{"host", "node", "ranks", "transport", "address", "user", "cores",
                                "accelerators", "machine", "interpreter"}};
  add_cell(plan, MapChoice::kNvlink, "NVLink domain", rows.back());
  add_cell(plan, MapChoice::kSwitch, "network switch", rows.back());
  for (const PlannedHost& host : plan.hosts) {
    rows.push_back(host_row(host, answers[host.host_index]));
    const std::string domain = host_domain(options, answers[host.host_index].facts);
    if (plan.map_by != MapChoice::kHost)
      add_cell(plan, plan.map_by, RemoteText(domain).line(), rows.back());
  }
  out += text_columns(rows) + device_table(plan, answers) + listening_lines(options, plan);
  if (options.max_restarts > 0)
    out += "restarts: at most " + std::to_string(options.max_restarts) +
           ", of all workers, on the same hosts with the same ranks\n";
  if (options.on_failure == OnFailure::kShrink)
    out += "failures: the job continues without failed workers while " +
           std::to_string(options.min_workers) + (options.min_workers == 1 ? " is" : " are") +
           " left\n";
  if (options.on_failure == OnFailure::kReplace)
    out += "failures: a failed worker is restarted alone, at most " +
           std::to_string(options.max_replacements) + " times in all\n";
  if (!plan.spares.empty())
    out += "spares: " + fold_host_names(plan.spares) +
           (plan.spares.size() == 1 ? " has no workers and takes" : " have no workers and take") +
           " the ranks of lost hosts\n";
  if (options.min_nodes)
    out += "hosts: continues without lost hosts while " + std::to_string(*options.min_nodes) +
           " are left, and renumbers the ranks\n";
  return out + command_lines(options, plan, answers);
}

std::vector<std::string> binding_lines(const JobPlan& plan) {
  std::vector<std::string> lines;
  for (const PlannedHost& host : plan.hosts) {
    for (const PlannedWorker& worker : host.workers) {
      std::string line = "rank " + std::to_string(worker.rank) + " on " + host.name + ": ";
      line += worker.cores.empty() ? "not bound" : "processors " + core_list_text(worker.cores);
      if (worker.memory_node)
        line += ", memory of NUMA node " + std::to_string(*worker.memory_node);
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace ivy
