// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/topology_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "launcher/options/hosts.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Orders paths by first appearance, level by level: a path's position is that of its first member.
class FirstSeen {
 public:
  explicit FirstSeen(char separator) : separator_(separator) {}

  std::vector<int> position_of(std::string_view path) {
    std::vector<int> position;
    std::string prefix;
    while (!path.empty()) {
      prefix += separator_;
      prefix += take_part(path, separator_);
      position.push_back(numbers_.emplace(prefix, static_cast<int>(numbers_.size())).first->second);
    }
    return position;
  }

 private:
  const char separator_;
  std::map<std::string, int> numbers_;
};

// Sorts `items` so that those with a common path are consecutive.
template <class Item>
void group(std::vector<Item>& items, const std::vector<std::string>& paths, char separator) {
  FirstSeen seen(separator);
  std::vector<std::pair<std::vector<int>, Item>> keyed;
  for (std::size_t i = 0; i < items.size(); ++i)
    keyed.emplace_back(seen.position_of(paths[i]), items[i]);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
}

char separator_of(MapChoice choice) { return choice == MapChoice::kNvlink ? '/' : '.'; }

void warn_of_unknown(PlanContext& context, const std::vector<std::string>& names) {
  const bool is_nvlink = context.options.map_by == MapChoice::kNvlink;
  context.warn(
      {.id = "IVY-P028",
       .what = is_nvlink ? "--map-by nvlink: the NVLink domain of some hosts is unknown"
                         : "--map-by switch: the network switch of some hosts is unknown",
       .where = fold_host_names(names),
       .cause = is_nvlink
                    ? "NVML reports a cluster on hosts with NVLink between hosts, once the fabric "
                      "manager or IMEX has registered their GPUs"
                    : "SLURM_TOPOLOGY_ADDR is not set there: Slurm sets it in a step, where "
                      "topology.conf or topology.yaml describes the network",
       .fix = "their ranks keep the order of -H; use --map-by host for all hosts"});
}

}  // namespace

std::string host_domain(const Options& options, const HostFacts& facts) {
  if (options.map_by == MapChoice::kSwitch) return facts.topology_address();
  if (options.map_by != MapChoice::kNvlink || facts.devices_size() == 0) return {};
  return facts.devices(0).fabric();
}

std::vector<std::size_t> host_order(PlanContext& context) {
  std::vector<std::size_t> order(context.answers.size());
  std::iota(order.begin(), order.end(), 0);
  const MapChoice choice = context.options.map_by;
  if (choice == MapChoice::kHost || order.size() < 2) return order;
  // The ranks of running nodes keep their order when a spare replaces a host.
  if (std::any_of(context.answers.begin(), context.answers.end(),
                  [](const HostAnswer& answer) { return answer.workers.has_value(); }))
    return order;
  std::vector<std::string> paths;
  std::vector<std::string> unknown;
  for (const HostAnswer& answer : context.answers) {
    paths.push_back(host_domain(context.options, answer.facts));
    if (!paths.back().empty()) continue;
    // A path that no other host has.
    paths.back() = "?" + std::to_string(paths.size());
    if (answer.is_present) unknown.push_back(answer.name);
  }
  if (!unknown.empty()) warn_of_unknown(context, unknown);
  group(order, paths, separator_of(choice));
  return order;
}

void order_devices(const Options& options, const HostFacts& facts, std::vector<int>& devices) {
  if (options.map_by != MapChoice::kSwitch) return;
  std::vector<std::string> paths;
  for (const int index : devices)
    paths.push_back(index < facts.devices_size() ? facts.devices(index).pci_switch() : "");
  group(devices, paths, '/');
}

}  // namespace ivy
