#include "launcher/plan/device_text.h"

#include <algorithm>

#include "launcher/report/text_columns.h"
#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

void append(std::string& list, const std::string& item) {
  if (!item.empty()) list += (list.empty() ? "" : ",") + item;
}

TextRow worker_row(const PlannedHost& host, const PlannedWorker& worker, const HostFacts& facts) {
  std::string devices;
  std::string addresses;
  std::string uuids;
  std::string interfaces;
  for (const int place : worker.devices) {
    const int index = host.devices[static_cast<std::size_t>(place)];
    if (index >= facts.devices_size()) {
      append(devices, std::to_string(index));
      continue;
    }
    const Accelerator& device = facts.devices(index);
    append(devices, device.mask_entry());
    append(addresses, device.bdf());
    append(uuids, device.uuid());
    if (interfaces.find(device.interface()) == std::string::npos)
      append(interfaces, device.interface());
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

std::string view_line(const PlannedHost& host, const HostFacts& facts) {
  const DeviceView& view = facts.device_view();
  std::string line = "accelerators of " + host.name + ": " + std::to_string(facts.accelerators()) +
                     " of " + std::to_string(view.present()) + " visible";
  if (!view.mask().empty()) line += " (" + RemoteText(view.mask()).line() + ")";
  if (!view.source().empty()) line += "; known by " + RemoteText(view.source()).line();
  if (host.sees_own) line += "; each worker sees its own alone";
  line += "\n";
  for (const std::string& note : view.notes()) line += "  " + RemoteText(note).line() + "\n";
  return line;
}

}  // namespace

std::string device_table(const JobPlan& plan, const std::vector<HostAnswer>& answers) {
  std::vector<TextRow> rows = {{"rank", "host", "local rank", "accelerator", "address", "UUID",
                                "processors", "NUMA", "near interface"}};
  std::string views;
  bool any = false;
  for (const PlannedHost& host : plan.hosts) {
    const HostFacts& facts = answers[host.host_index].facts;
    if (facts.has_device_view()) views += view_line(host, facts);
    for (const PlannedWorker& worker : host.workers) {
      any = any || !worker.devices.empty() || !worker.cores.empty();
      rows.push_back(worker_row(host, worker, facts));
    }
  }
  return views + (any ? text_columns(rows) : "");
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
