// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/device_files.h"

#include <string_view>
#include <utility>

#include "agent/devices/small_files.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

struct NetworkDevice {
  std::string interface;
  std::string place;
};

std::vector<NetworkDevice> network_devices(const std::string& root) {
  std::vector<NetworkDevice> found;
  for (const std::string& name : names_in(root + "/sys/class/net")) {
    // Bridges, tunnels and the loopback interface have no device.
    std::string place = resolved(root + "/sys/class/net/" + name + "/device");
    if (!place.empty()) found.push_back({name, std::move(place)});
  }
  return found;
}

// Returns how many leading directories two paths have in common.
std::size_t common_parts(std::string_view one, std::string_view other) {
  std::size_t parts = 0;
  for (std::size_t i = 0; i < one.size() && i < other.size() && one[i] == other[i]; ++i)
    if (one[i] == '/') ++parts;
  return parts;
}

// Returns the interface behind the same switch, or else behind the same root complex; empty if
// there is none.
std::string nearest_interface(const std::string& place,
                              const std::vector<NetworkDevice>& interfaces) {
  const std::size_t root_begin = place.find("/pci");
  if (root_begin == std::string::npos) return {};
  // Every directory up to and including ".../pci0000:00/" must be equal.
  const std::size_t needed =
      common_parts(place, place.substr(0, place.find('/', root_begin + 1) + 1));
  const NetworkDevice* best = nullptr;
  std::size_t most = 0;
  for (const NetworkDevice& candidate : interfaces) {
    const std::size_t parts = common_parts(place, candidate.place);
    if (parts < needed || parts <= most) continue;
    best = &candidate;
    most = parts;
  }
  return best == nullptr ? "" : best->interface;
}

// Returns the switch's upstream port, two ports above the device. For a device directly at a root
// port, which has no switch, returns the root complex.
std::string switch_of(const std::string& place) {
  const std::size_t root_begin = place.find("/pci");
  if (root_begin == std::string::npos) return {};
  std::vector<std::string> parts;
  std::string_view left = std::string_view(place).substr(root_begin + 1);
  while (!left.empty()) parts.emplace_back(take_part(left, '/'));
  return parts.size() > 3 ? parts[parts.size() - 3] : parts.front();
}

BusDevice read_bus_device(const std::string& root, const std::string& bdf,
                          const std::vector<NetworkDevice>& interfaces) {
  const std::string directory = root + "/sys/bus/pci/devices/" + bdf;
  BusDevice device;
  device.bdf = normal_bdf(bdf);
  device.numa_node = number_in(directory + "/numa_node", -1);
  device.cores = first_line(directory + "/local_cpulist");
  const std::string place = resolved(directory);
  device.interface = nearest_interface(place, interfaces);
  device.pci_switch = switch_of(place);
  return device;
}

}  // namespace

DeviceFiles read_device_files(const std::string& root) {
  DeviceFiles files;
  files.nvidia = read_nvidia_files(root);
  files.amd = read_amd_files(root);
  files.intel = read_intel_files(root);
  if (files.nvidia.on_bus.empty() && files.nvidia.driver.empty() && files.amd.empty() &&
      files.intel.empty())
    return files;
  const std::vector<NetworkDevice> interfaces = network_devices(root);
  for (const std::string& name : files.nvidia.on_bus)
    files.nvidia.bus.push_back(read_bus_device(root, name, interfaces));
  for (const AmdDevice& device : files.amd)
    files.amd_bus.push_back(read_bus_device(root, device.bdf, interfaces));
  for (const IntelDevice& device : files.intel)
    files.intel_bus.push_back(read_bus_device(root, device.bdf, interfaces));
  return files;
}

FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml) {
  FoundDevices found;
  add_nvidia(files.nvidia, nvml, found);
  if (found.devices.empty()) add_amd(files.amd, files.amd_bus, found);
  if (found.devices.empty()) add_intel(files.intel, files.intel_bus, found);
  return found;
}

}  // namespace ivy
