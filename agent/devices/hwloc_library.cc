// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/hwloc_library.h"

#include <dlfcn.h>
#include <hwloc.h>

#include <cstdlib>

namespace ivy {
namespace {

// The functions of hwloc 2 that are used. Inline functions of its header need no library.
struct HwlocLibrary {
  HwlocLibrary() : handle(dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    load(init, "hwloc_topology_init");
    load(load_topology, "hwloc_topology_load");
    load(destroy, "hwloc_topology_destroy");
    load(depth_of, "hwloc_get_type_depth");
    load(count_at, "hwloc_get_nbobjs_by_depth");
    load(object_at, "hwloc_get_obj_by_depth");
    load(next_processor, "hwloc_bitmap_next");
  }
  ~HwlocLibrary() {
    if (handle != nullptr) dlclose(handle);
  }
  HwlocLibrary(const HwlocLibrary&) = delete;
  HwlocLibrary& operator=(const HwlocLibrary&) = delete;

  template <class Function>
  void load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle, symbol));
    is_whole = is_whole && function != nullptr;
  }

  void* handle;
  bool is_whole = true;
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_load) load_topology = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_get_type_depth) depth_of = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) count_at = nullptr;
  decltype(&hwloc_get_obj_by_depth) object_at = nullptr;
  decltype(&hwloc_bitmap_next) next_processor = nullptr;
};

int lowest(const HwlocLibrary& hwloc, hwloc_const_bitmap_t set) {
  return set == nullptr ? -1 : hwloc.next_processor(set, -1);
}

Core read_core(const HwlocLibrary& hwloc, hwloc_obj_t object) {
  Core core;
  for (int processor = hwloc.next_processor(object->cpuset, -1);
       processor >= 0 && processor <= kMaxProcessorNumber;
       processor = hwloc.next_processor(object->cpuset, processor))
    core.processors.push_back(processor);
  core.numa_node = lowest(hwloc, object->nodeset);
  for (hwloc_obj_t above = object->parent; above != nullptr; above = above->parent) {
    if (above->type == HWLOC_OBJ_PACKAGE) core.package = static_cast<int>(above->os_index);
    if (above->type == HWLOC_OBJ_L3CACHE) core.l3 = lowest(hwloc, above->cpuset);
  }
  return core;
}

}  // namespace

std::vector<Core> query_hwloc(const std::string& root) {
  std::vector<Core> cores;
  const HwlocLibrary hwloc;
  if (hwloc.handle == nullptr || !hwloc.is_whole) return cores;
  if (!root.empty()) setenv("HWLOC_FSROOT", root.c_str(), 1);
  // hwloc's plug-ins search for displays and accelerators, which are not needed.
  setenv("HWLOC_COMPONENTS", "linux,stop", 1);
  hwloc_topology_t topology = nullptr;
  if (hwloc.init(&topology) != 0) return cores;
  if (hwloc.load_topology(topology) == 0) {
    const int depth = hwloc.depth_of(topology, HWLOC_OBJ_CORE);
    // Some virtual machines show processors without cores; the kernel's files then give the cores.
    const unsigned count = depth < 0 ? 0 : hwloc.count_at(topology, depth);
    for (unsigned i = 0; i < count; ++i)
      if (const hwloc_obj_t object = hwloc.object_at(topology, depth, i))
        cores.push_back(read_core(hwloc, object));
  }
  hwloc.destroy(topology);
  return cores;
}

}  // namespace ivy
