// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/device_files.h"

#include <string_view>
#include <utility>

#include "agent/devices/amd_devices.h"
#include "agent/devices/intel_devices.h"
#include "agent/devices/small_files.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

struct VendorReader {
  Vendor vendor;
  std::vector<ListedDevice> (*read)(const std::string& root);
  std::string_view device;  // For messages, as is the next.
  std::string_view files;   // The files whose permissions decide whether a device is usable.
};
constexpr VendorReader kReaders[] = {
    {Vendor::kAmd, read_amd_files, "AMD device", "/dev/kfd or its file in /dev/dri"},
    {Vendor::kIntel, read_intel_files, "Intel device", "its file in /dev/dri"},
};

struct NetworkDevice {
  std::string interface;
  std::string path;
};

std::vector<NetworkDevice> network_devices(const std::string& root) {
  std::vector<NetworkDevice> found;
  for (const std::string& name : names_in(root + "/sys/class/net")) {
    // Bridges, tunnels and the loopback interface have no device.
    std::string path = resolved(root + "/sys/class/net/" + name + "/device");
    if (!path.empty()) found.push_back({name, std::move(path)});
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
std::string nearest_interface(const std::string& path,
                              const std::vector<NetworkDevice>& interfaces) {
  const std::size_t root_begin = path.find("/pci");
  if (root_begin == std::string::npos) return {};
  // Every directory up to and including ".../pci0000:00/" must be equal.
  const std::size_t needed = common_parts(path, path.substr(0, path.find('/', root_begin + 1) + 1));
  const NetworkDevice* best = nullptr;
  std::size_t most = 0;
  for (const NetworkDevice& candidate : interfaces) {
    const std::size_t parts = common_parts(path, candidate.path);
    if (parts < needed || parts <= most) continue;
    best = &candidate;
    most = parts;
  }
  return best == nullptr ? "" : best->interface;
}

// Returns the switch's upstream port, two ports above the device. For a device directly at a root
// port, which has no switch, returns the root complex.
std::string switch_of(const std::string& path) {
  const std::size_t root_begin = path.find("/pci");
  if (root_begin == std::string::npos) return {};
  std::vector<std::string> parts;
  std::string_view left = std::string_view(path).substr(root_begin + 1);
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
  const std::string path = resolved(directory);
  device.interface = nearest_interface(path, interfaces);
  device.pci_switch = switch_of(path);
  return device;
}

void add_listed(const std::vector<ListedDevice>& listed, const VendorReader& reader,
                FoundDevices& found) {
  std::size_t unusable = 0;
  int index = 0;
  for (const ListedDevice& one : listed) {
    if (!one.is_usable) {
      ++unusable;
      continue;
    }
    for (int tile = 0; tile < one.tiles; ++tile) {
      FoundDevice device;
      device.gpu = index++;
      device.bdf = one.bdf;
      device.uuid = one.uuid;
      device.users = one.users;
      device.used_bytes = one.used_bytes;
      set_location(&one.bus, device);
      found.devices.push_back(std::move(device));
    }
  }
  found.unusable += static_cast<int>(unusable);
  if (unusable > 0)
    add_note(found.notes, counted(unusable, reader.device) + " cannot be used here: " +
                              std::string(reader.files) + " cannot be opened");
  if (found.devices.empty()) return;
  found.vendor = &device_vendor(reader.vendor);
  found.source = "files";
}

}  // namespace

DeviceFiles read_device_files(const std::string& root) {
  DeviceFiles files;
  files.nvidia = read_nvidia_files(root);
  bool has_devices = !files.nvidia.on_bus.empty() || !files.nvidia.driver.empty();
  for (const VendorReader& reader : kReaders) {
    files.others[reader.vendor] = reader.read(root);
    has_devices = has_devices || !files.others[reader.vendor].empty();
  }
  if (!has_devices) return files;
  const std::vector<NetworkDevice> interfaces = network_devices(root);
  for (const std::string& name : files.nvidia.on_bus)
    files.nvidia.bus.push_back(read_bus_device(root, name, interfaces));
  for (auto& [vendor, devices] : files.others)
    for (ListedDevice& device : devices) device.bus = read_bus_device(root, device.bdf, interfaces);
  return files;
}

FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml) {
  FoundDevices found;
  add_nvidia(files.nvidia, nvml, found);
  for (const VendorReader& reader : kReaders) {
    const auto listed = files.others.find(reader.vendor);
    if (found.devices.empty() && listed != files.others.end())
      add_listed(listed->second, reader, found);
  }
  return found;
}

}  // namespace ivy
