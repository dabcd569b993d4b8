#include "agent/devices/found_devices.h"

#include <algorithm>
#include <cctype>

namespace ivy {
namespace {

// One NVIDIA GPU, as far as all sources together know it.
struct Gpu {
  std::string bdf;
  std::string uuid;
  std::string model;
  bool is_mig_enabled = false;
  std::vector<MigSlice> slices;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

std::string counted(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void add_note(std::vector<std::string>& notes, std::string note) {
  if (notes.size() < kMaxDeviceNotes) notes.push_back(std::move(note));
}

const BusDevice* on_bus(const std::vector<BusDevice>& bus, const std::string& bdf) {
  const auto device = std::find_if(bus.begin(), bus.end(),
                                   [&](const BusDevice& other) { return other.bdf == bdf; });
  return device == bus.end() ? nullptr : &*device;
}

const DriverDevice* in_driver(const DeviceFiles& files, const std::string& bdf) {
  const auto device = std::find_if(files.driver.begin(), files.driver.end(),
                                   [&](const DriverDevice& other) { return other.bdf == bdf; });
  return device == files.driver.end() ? nullptr : &*device;
}

// The driver makes device files when a program first asks for one. So absent files say something
// only where others are there: then they were taken away, as containers do.
bool is_usable(const DeviceFiles& files, const DriverDevice& device) {
  if (device.is_excluded || device.node == NodeState::kForbidden) return false;
  return device.node == NodeState::kUsable || files.nvidia_nodes == 0;
}

void note_unusable(const DeviceFiles& files, FoundDevices& found) {
  std::vector<std::string> forbidden;
  std::vector<std::string> excluded;
  for (const DriverDevice& device : files.driver) {
    if (device.is_excluded) {
      excluded.push_back(device.bdf);
    } else if (!is_usable(files, device)) {
      forbidden.push_back("/dev/nvidia" + std::to_string(device.minor));
    }
  }
  found.unusable = static_cast<int>(forbidden.size());
  if (!forbidden.empty())
    add_note(found.notes, counted(forbidden.size(), "device") +
                              " may not be used here: " + joined(forbidden) + " cannot be opened");
  if (!excluded.empty())
    add_note(found.notes, "the administrator has excluded " + joined(excluded) + " from use");
}

// Sources may each lack a device: one that has fallen off the bus, one without a driver.
void compare(const DeviceFiles& files, const NvmlAnswer& nvml, FoundDevices& found) {
  std::vector<std::string> not_in_nvml;
  std::vector<std::string> not_in_driver;
  if (nvml.is_here && !files.driver.empty()) {
    const auto knows = [&](const std::string& bdf) {
      return std::any_of(nvml.devices.begin(), nvml.devices.end(),
                         [&](const NvmlDevice& device) { return device.bdf == bdf; });
    };
    for (const DriverDevice& device : files.driver)
      if (is_usable(files, device) && !knows(device.bdf)) not_in_nvml.push_back(device.bdf);
    for (const NvmlDevice& device : nvml.devices)
      if (in_driver(files, device.bdf) == nullptr) not_in_driver.push_back(device.bdf);
  }
  if (!not_in_nvml.empty())
    add_note(found.disagreements, "NVML does not know " + joined(not_in_nvml) +
                                      ", which the driver lists: nvidia-smi and dmesg may say why");
  if (!not_in_driver.empty())
    add_note(found.disagreements,
             "/proc/driver/nvidia does not list " + joined(not_in_driver) + ", which NVML knows");
  std::vector<std::string> without_driver;
  for (const BusDevice& device : files.nvidia) {
    const bool is_known =
        in_driver(files, device.bdf) != nullptr ||
        std::any_of(nvml.devices.begin(), nvml.devices.end(),
                    [&](const NvmlDevice& other) { return other.bdf == device.bdf; });
    if (!is_known) without_driver.push_back(device.bdf);
  }
  if (!without_driver.empty() && (nvml.is_here || !files.driver.empty()))
    add_note(found.disagreements,
             "the PCI bus has " + joined(without_driver) + ", which the driver does not know");
}

std::vector<Gpu> gpus_of_nvml(const DeviceFiles& files, const NvmlAnswer& nvml) {
  std::vector<Gpu> gpus;
  for (const NvmlDevice& device : nvml.devices) {
    const DriverDevice* driver = in_driver(files, device.bdf);
    if (driver != nullptr && !is_usable(files, *driver)) continue;
    gpus.push_back({device.bdf, device.uuid, device.model, device.is_mig_enabled, device.slices,
                    device.users, device.used_bytes});
  }
  return gpus;
}

// As for GPUs: where none of the instances' files is there, nobody has taken them away.
std::vector<MigSlice> usable_slices(const DeviceFiles& files, const DriverDevice& device) {
  const auto can_be_opened = [](const MigSlice& slice) { return slice.node == NodeState::kUsable; };
  const bool any_usable =
      std::any_of(files.driver.begin(), files.driver.end(), [&](const DriverDevice& other) {
        return std::any_of(other.slices.begin(), other.slices.end(), can_be_opened);
      });
  std::vector<MigSlice> usable;
  for (const MigSlice& slice : device.slices)
    if (can_be_opened(slice) || (slice.node == NodeState::kAbsent && !any_usable))
      usable.push_back(slice);
  return usable;
}

std::vector<Gpu> gpus_of_files(const DeviceFiles& files, FoundDevices& found) {
  std::vector<Gpu> gpus;
  std::size_t hidden = 0;
  for (const DriverDevice& device : files.driver) {
    if (!is_usable(files, device)) continue;
    std::vector<MigSlice> slices = usable_slices(files, device);
    hidden += device.slices.size() - slices.size();
    if (slices.empty() && !device.slices.empty()) continue;
    gpus.push_back({device.bdf, device.uuid, device.model, !slices.empty(), slices, {}, 0});
  }
  if (hidden > 0)
    add_note(found.notes, counted(hidden, "MIG instance") +
                              " may not be used here: files in /dev/nvidia-caps cannot be opened");
  if (!gpus.empty() || !files.driver.empty()) return gpus;
  // A container may show device files without the driver's list. Then the bus gives the addresses,
  // if it agrees about the number.
  const auto count = static_cast<std::size_t>(files.nvidia_nodes);
  for (std::size_t i = 0; i < count; ++i) {
    Gpu gpu;
    if (files.nvidia.size() == count) gpu.bdf = files.nvidia[i].bdf;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void add_gpu(const Gpu& gpu, int index, const BusDevice* bus, FoundDevices& found) {
  FoundDevice device;
  device.gpu = index;
  device.bdf = gpu.bdf;
  device.model = gpu.model;
  if (bus != nullptr) {
    device.numa_node = bus->numa_node;
    device.cores = bus->cores;
    device.interface = bus->interface;
  }
  if (!gpu.is_mig_enabled) {
    device.uuid = gpu.uuid;
    device.users = gpu.users;
    device.used_bytes = gpu.used_bytes;
    found.devices.push_back(std::move(device));
    return;
  }
  // Without NVML an instance has no UUID that we know; CUDA also takes it by its place.
  device.is_mig = true;
  for (const MigSlice& slice : gpu.slices) {
    FoundDevice part = device;
    part.uuid = !slice.uuid.empty() ? slice.uuid
                                    : "MIG-" + gpu.uuid + "/" + std::to_string(slice.gpu_instance) +
                                          "/" + std::to_string(slice.compute_instance);
    part.users = slice.users;
    part.used_bytes = slice.used_bytes;
    found.devices.push_back(std::move(part));
  }
  if (gpu.slices.empty())
    add_note(found.disagreements,
             gpu.bdf + " is in MIG mode and has no instance: it cannot be used");
}

void add_nvidia(const DeviceFiles& files, const NvmlAnswer& nvml, FoundDevices& found) {
  const std::vector<Gpu> gpus =
      nvml.is_here ? gpus_of_nvml(files, nvml) : gpus_of_files(files, found);
  for (std::size_t i = 0; i < gpus.size(); ++i)
    add_gpu(gpus[i], static_cast<int>(i), on_bus(files.nvidia, gpus[i].bdf), found);
  note_unusable(files, found);
  compare(files, nvml, found);
  if (!found.devices.empty()) {
    found.vendor = "nvidia";
    found.source = nvml.is_here ? "NVML " + nvml.driver_version : "files";
  } else if (files.driver.empty() && !nvml.is_here && !files.nvidia.empty()) {
    add_note(found.notes,
             counted(files.nvidia.size(), "NVIDIA device") +
                 " on the PCI bus without a driver: the module nvidia is not loaded, or "
                 "not shown to this container");
  }
}

void add_amd(const DeviceFiles& files, FoundDevices& found) {
  std::size_t unusable = 0;
  int index = 0;
  for (const AmdDevice& amd : files.amd) {
    if (amd.node != NodeState::kUsable) {
      ++unusable;
      continue;
    }
    FoundDevice device;
    device.gpu = index++;
    device.bdf = amd.bdf;
    device.uuid = amd.uuid;
    device.users = amd.users;
    device.used_bytes = amd.used_bytes;
    if (const BusDevice* bus = on_bus(files.amd_bus, amd.bdf)) {
      device.numa_node = bus->numa_node;
      device.cores = bus->cores;
      device.interface = bus->interface;
    }
    found.devices.push_back(std::move(device));
  }
  found.unusable = static_cast<int>(unusable);
  if (unusable > 0)
    add_note(found.notes,
             counted(unusable, "AMD device") +
                 " may not be used here: /dev/kfd or its file in /dev/dri cannot be opened");
  if (!found.devices.empty()) {
    found.vendor = "amd";
    found.source = "files";
  }
}

}  // namespace

std::string normal_bdf(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // NVML writes eight digits of the domain, the kernel as few as needed but four.
  std::size_t colon = text.find(':');
  for (; colon != std::string::npos && colon > 4 && text.front() == '0'; --colon) text.erase(0, 1);
  return text;
}

FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml) {
  FoundDevices found;
  add_nvidia(files, nvml, found);
  if (found.devices.empty()) add_amd(files, found);
  return found;
}

}  // namespace ivy
