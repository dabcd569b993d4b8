// SPDX-License-Identifier: Apache-2.0
#include "agent/node/hang/rank_usage.h"

#include <unistd.h>

#include <map>
#include <set>

namespace ivy {
namespace {

using Children = std::multimap<pid_t, const ProcessStat*>;

// Adds up a process and all processes below it. Returns their pids.
std::set<pid_t> add_tree(const ProcessStat& root, const Children& children, RankUsage& usage) {
  static const auto tick_ms = static_cast<std::uint64_t>(1000 / sysconf(_SC_CLK_TCK));
  static const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::set<pid_t> members;
  std::vector<const ProcessStat*> open{&root};
  while (!open.empty() && usage.processes() < kMaxMembers) {
    const ProcessStat& process = *open.back();
    open.pop_back();
    members.insert(process.pid);
    usage.set_processes(usage.processes() + 1);
    usage.set_cpu_ms(usage.cpu_ms() + process.cpu_ticks * tick_ms);
    usage.set_memory_bytes(usage.memory_bytes() + process.resident_pages * page_bytes);
    const auto [first, last] = children.equal_range(process.pid);
    for (auto child = first; child != last; ++child) open.push_back(child->second);
  }
  return members;
}

// Adds the device memory that the members hold, and sets the average load of these devices.
void add_devices(const std::set<pid_t>& members, const std::vector<HeldMemory>& held,
                 RankUsage& usage) {
  int measured = 0;
  int busy_percent = 0;
  for (const HeldMemory& device : held) {
    bool is_used = false;
    for (const DeviceHolder& holder : device.holders) {
      if (!members.contains(holder.pid)) continue;
      is_used = true;
      usage.set_device_bytes(usage.device_bytes() + holder.bytes);
    }
    if (!is_used) continue;
    usage.set_devices(usage.devices() + 1);
    if (device.busy_percent < 0) continue;
    ++measured;
    busy_percent += device.busy_percent;
  }
  usage.set_device_percent(measured == 0 ? -1 : busy_percent / measured);
}

}  // namespace

void add_usage(const std::vector<RankProcess>& ranks, const std::vector<ProcessStat>& all,
               const std::vector<HeldMemory>& held, Operations& answer) {
  Children children;
  std::map<pid_t, const ProcessStat*> by_pid;
  for (const ProcessStat& process : all) {
    children.emplace(process.parent, &process);
    by_pid.emplace(process.pid, &process);
  }
  for (const auto& [rank, pid] : ranks) {
    const auto found = by_pid.find(pid);
    if (found == by_pid.end()) continue;
    RankUsage& usage = *answer.add_usage();
    usage.set_rank(rank);
    usage.set_pid(pid);
    add_devices(add_tree(*found->second, children, usage), held, usage);
  }
}

}  // namespace ivy
