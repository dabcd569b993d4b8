// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/intel_devices.h"

#include <algorithm>

#include "agent/devices/small_files.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Integrated graphics are on the root bus itself.
bool is_below_bridge(const std::string& path) {
  const std::size_t root_begin = path.find("/pci");
  if (root_begin == std::string::npos) return false;
  return std::count(path.begin() + static_cast<std::ptrdiff_t>(root_begin) + 1, path.end(), '/') >
         1;
}

int count_names(const std::string& directory, std::string_view prefix) {
  int count = 0;
  for (const std::string& name : names_in(directory))
    if (number_after(name, prefix) >= 0) ++count;
  return count;
}

// xe has one "tile" directory per tile, i915 one "gt" directory per tile.
int tiles_of(const std::string& card) {
  const int tiles = count_names(card + "/device", "tile");
  return std::max(1, tiles > 0 ? tiles : count_names(card + "/gt", "gt"));
}

NodeState render_node(const std::string& root, const std::string& card) {
  for (const std::string& name : names_in(card + "/device/drm"))
    if (number_after(name, "renderD") >= 0) return node_state(root + "/dev/dri/" + name);
  return NodeState::kAbsent;
}

}  // namespace

std::vector<ListedDevice> read_intel_files(const std::string& root) {
  std::vector<ListedDevice> found;
  const std::string cards = root + "/sys/class/drm";
  for (const std::string& name : names_in(cards)) {
    if (number_after(name, "card") < 0) continue;
    const std::string card = cards + "/" + name;
    if (first_line(card + "/device/vendor") != "0x8086") continue;
    const std::string path = resolved(card + "/device");
    if (!is_below_bridge(path)) continue;
    ListedDevice device;
    device.bdf = normal_bdf(last_part(path));
    device.tiles = tiles_of(card);
    device.is_usable = render_node(root, card) == NodeState::kUsable;
    found.push_back(std::move(device));
  }
  std::sort(found.begin(), found.end(),
            [](const ListedDevice& a, const ListedDevice& b) { return a.bdf < b.bdf; });
  return found;
}

}  // namespace ivy
