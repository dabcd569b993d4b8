// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/core_files.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <memory>

#include "agent/devices/small_files.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

std::map<int, int> numa_nodes(const std::string& root) {
  std::map<int, int> node_of;
  const std::string directory = root + "/sys/devices/system/node";
  for (const std::string& name : names_in(directory)) {
    if (!name.starts_with("node")) continue;
    const CoreList number = parse_core_list(std::string_view(name).substr(4));
    if (number.size() != 1) continue;
    for (const int processor : parse_core_list(first_line(directory + "/" + name + "/cpulist")))
      node_of[processor] = number.front();
  }
  return node_of;
}

// Returns the lowest processor that shares the level-3 cache, as the cache's number; -1 if there is
// no such cache.
int level_3_cache(const std::string& processor_directory) {
  for (int index = 0; index < 8; ++index) {
    const std::string cache = processor_directory + "/cache/index" + std::to_string(index);
    const int level = number_in(cache + "/level", 0);
    if (level == 0) return -1;
    if (level != 3) continue;
    const CoreList sharing = parse_core_list(first_line(cache + "/shared_cpu_list"));
    return sharing.empty() ? -1 : sharing.front();
  }
  return -1;
}

}  // namespace

CoreList allowed_cores(const std::string& root) {
  if (!root.empty()) {
    const CoreList listed =
        parse_core_list(value_after(small_file(root + "/proc/self/status"), "Cpus_allowed_list"));
    if (!listed.empty()) return listed;
  }
  const int processors = kMaxProcessorNumber + 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(processors);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(processors),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  CPU_ZERO_S(bytes, set.get());
  CoreList allowed;
  if (sched_getaffinity(0, bytes, set.get()) != 0) return allowed;
  for (int processor = 0; processor < processors; ++processor)
    if (CPU_ISSET_S(static_cast<std::size_t>(processor), bytes, set.get()))
      allowed.push_back(processor);
  return allowed;
}

std::vector<Core> read_cores(const std::string& root, const CoreList& allowed) {
  const std::map<int, int> node_of = numa_nodes(root);
  std::vector<Core> cores;
  CoreList taken;
  for (const int processor : allowed) {
    if (std::binary_search(taken.begin(), taken.end(), processor)) continue;
    const std::string directory = root + "/sys/devices/system/cpu/cpu" + std::to_string(processor);
    Core core;
    core.processors = common_cores(
        allowed, parse_core_list(first_line(directory + "/topology/thread_siblings_list")));
    if (core.processors.empty()) core.processors = {processor};
    taken = joined_cores(taken, core.processors);
    const auto node = node_of.find(processor);
    if (node != node_of.end()) core.numa_node = node->second;
    core.package = number_in(directory + "/topology/physical_package_id", -1);
    core.l3 = level_3_cache(directory);
    cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace ivy
