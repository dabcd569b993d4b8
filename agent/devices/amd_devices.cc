// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/amd_devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "agent/devices/small_files.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

std::uint64_t property(const std::string& text, const std::string& name) {
  return std::strtoull(value_after(text, name).c_str(), nullptr, 10);
}

// kfd packs bus, device and function into location_id.
std::string bdf_of_location(std::uint64_t domain, std::uint64_t location) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", static_cast<unsigned>(domain),
                static_cast<unsigned>((location >> 8) & 0xff),
                static_cast<unsigned>((location >> 3) & 0x1f), static_cast<unsigned>(location & 7));
  return text;
}

// Reads which processes have memory or a queue on the device. kfd has a directory for each process
// that has opened it.
void read_amd_users(const std::string& root, const std::string& gpu_id, ListedDevice& device) {
  if (gpu_id.empty()) return;
  const std::string processes = root + "/sys/class/kfd/kfd/proc";
  for (const std::string& name : names_in(processes)) {
    const int pid = number_after(name, "");
    if (pid <= 0) continue;
    const std::string process = processes + "/" + name;
    const std::string memory = first_line(process + "/vram_" + gpu_id);
    const std::uint64_t bytes = std::strtoull(memory.c_str(), nullptr, 10);
    const std::vector<std::string> queues = names_in(process + "/queues");
    const bool has_queue = std::any_of(queues.begin(), queues.end(), [&](const std::string& queue) {
      return first_line(process + "/queues/" + queue + "/gpuid") == gpu_id;
    });
    if (bytes == 0 && !has_queue) continue;
    device.users.push_back(pid);
    device.used_bytes += bytes;
  }
}

}  // namespace

std::vector<ListedDevice> read_amd_files(const std::string& root) {
  const std::string nodes = root + "/sys/class/kfd/kfd/topology/nodes";
  std::vector<std::string> names = names_in(nodes);
  // By number: sorted as text, "10" would precede "9".
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  std::vector<ListedDevice> found;
  for (const std::string& name : names) {
    const std::string text = small_file(nodes + "/" + name + "/properties");
    if (property(text, "simd_count") == 0) continue;
    ListedDevice device;
    device.bdf = bdf_of_location(property(text, "domain"), property(text, "location_id"));
    if (const std::uint64_t id = property(text, "unique_id"); id != 0) {
      char uuid[32];
      std::snprintf(uuid, sizeof uuid, "GPU-%016llx", static_cast<unsigned long long>(id));
      device.uuid = uuid;
    }
    const std::string render =
        root + "/dev/dri/renderD" + std::to_string(property(text, "drm_render_minor"));
    device.is_usable = node_state(render) == NodeState::kUsable &&
                       node_state(root + "/dev/kfd") == NodeState::kUsable;
    read_amd_users(root, first_line(nodes + "/" + name + "/gpu_id"), device);
    found.push_back(std::move(device));
  }
  return found;
}

}  // namespace ivy
