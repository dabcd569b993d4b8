// SPDX-License-Identifier: Apache-2.0
// read_nvidia_files() reads the kernel's files, add_nvidia() builds the list of devices: from
// NVML's answer if there is one (gpus_of_nvml()), otherwise from the files (gpus_of_files()). It
// then notes devices that exist but cannot be used (note_unusable()) and contradictions
// (compare()).
#include "agent/devices/nvidia_devices.h"

#include <algorithm>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// A process needs the files of both the GPU instance and the compute instance.
NodeState slice_state(const std::string& root, const std::string& gpu_instance,
                      const std::string& compute_instance) {
  NodeState state = NodeState::kUsable;
  for (const std::string& directory : {gpu_instance, compute_instance}) {
    const std::string number = value_after(small_file(directory + "/access"), "DeviceFileMinor");
    const NodeState one = is_all_digits(number)
                              ? node_state(root + "/dev/nvidia-caps/nvidia-cap" + number)
                              : NodeState::kAbsent;
    if (one == NodeState::kForbidden) return one;
    if (one == NodeState::kAbsent) state = one;
  }
  return state;
}

std::vector<MigSlice> read_slices(const std::string& root, int minor) {
  std::vector<MigSlice> slices;
  const std::string mig =
      root + "/proc/driver/nvidia/capabilities/gpu" + std::to_string(minor) + "/mig";
  for (const std::string& name : names_in(mig)) {
    const int gpu_instance = number_after(name, "gi");
    if (gpu_instance < 0) continue;
    for (const std::string& part : names_in(mig + "/" + name)) {
      const int compute_instance = number_after(part, "ci");
      if (compute_instance < 0) continue;
      MigSlice slice;
      slice.gpu_instance = gpu_instance;
      slice.compute_instance = compute_instance;
      slice.node = slice_state(root, mig + "/" + name, mig + "/" + name + "/" + part);
      slices.push_back(std::move(slice));
    }
  }
  std::sort(slices.begin(), slices.end(), [](const MigSlice& a, const MigSlice& b) {
    return std::pair(a.gpu_instance, a.compute_instance) <
           std::pair(b.gpu_instance, b.compute_instance);
  });
  return slices;
}

DriverDevice read_driver_device(const std::string& root, const std::string& name) {
  const std::string text = small_file(root + "/proc/driver/nvidia/gpus/" + name + "/information");
  DriverDevice device;
  device.bdf = normal_bdf(name);
  device.model = value_after(text, "Model");
  device.uuid = value_after(text, "GPU UUID");
  // Until the device has been initialized, the driver shows its UUID with question marks.
  if (device.uuid.find('?') != std::string::npos) device.uuid.clear();
  device.is_excluded = value_after(text, "GPU Excluded") == "Yes";
  const std::string minor = value_after(text, "Device Minor");
  if (is_all_digits(minor)) device.minor = number_after(minor, "");
  if (device.minor >= 0) {
    device.node = node_state(root + "/dev/nvidia" + std::to_string(device.minor));
    device.slices = read_slices(root, device.minor);
  }
  return device;
}

bool is_nvidia_display(const std::string& device) {
  return first_line(device + "/vendor") == "0x10de" &&
         first_line(device + "/class").starts_with("0x03");
}

// Returns false if the kernel's list of the bus, which is cheap to read, contains no NVIDIA device.
// Without such a list, each device has to be examined.
bool may_have_nvidia_on_bus(const std::string& root) {
  // A line is "BUSDEVFN <tab> VENDORDEVICE <tab> ...".
  // A machine with many virtual functions has thousands of lines.
  constexpr std::size_t kMaxBytes = 16u << 20;
  const std::string list = read_file(root + "/proc/bus/pci/devices", kMaxBytes).value_or("");
  return list.empty() || list.find("\t10de") != std::string::npos;
}

int usable_nvidia_nodes(const std::string& root) {
  int count = 0;
  for (const std::string& name : names_in(root + "/dev"))
    if (number_after(name, "nvidia") >= 0 &&
        node_state(root + "/dev/" + name) == NodeState::kUsable)
      ++count;
  return count;
}

// One NVIDIA GPU, merged from all sources.
struct Gpu {
  std::string bdf;
  std::string uuid;
  std::string model;
  bool is_mig_enabled = false;
  std::vector<MigSlice> slices;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  std::uint64_t memory_bytes = 0;
  std::string fabric;
};

const DriverDevice* in_driver(const NvidiaFiles& files, const std::string& bdf) {
  const auto device = std::find_if(files.driver.begin(), files.driver.end(),
                                   [&](const DriverDevice& other) { return other.bdf == bdf; });
  return device == files.driver.end() ? nullptr : &*device;
}

// The driver creates device files when a program first uses a device. So missing files only count
// if others exist: then they were removed, as containers do.
bool is_usable(const NvidiaFiles& files, const DriverDevice& device) {
  if (device.is_excluded || device.node == NodeState::kForbidden) return false;
  return device.node == NodeState::kUsable || files.nodes == 0;
}

void note_unusable(const NvidiaFiles& files, FoundDevices& found) {
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
    add_note(found.notes, counted(forbidden.size(), "device") + " may not be used here: " +
                              joined(forbidden, ", ") + " cannot be opened");
  if (!excluded.empty())
    add_note(found.notes, "the administrator has excluded " + joined(excluded, ", ") + " from use");
}

// Reports contradictions between the sources: a device that has fallen off the bus, or one without
// a driver.
void compare(const NvidiaFiles& files, const NvmlAnswer& nvml, FoundDevices& found) {
  std::vector<std::string> not_in_nvml;
  std::vector<std::string> not_in_driver;
  if (nvml.is_present && !files.driver.empty()) {
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
    add_note(found.disagreements,
             "NVML does not know " + joined(not_in_nvml, ", ") +
                 ", which the driver lists: nvidia-smi and dmesg may show why");
  if (!not_in_driver.empty())
    add_note(found.disagreements, "/proc/driver/nvidia does not list " +
                                      joined(not_in_driver, ", ") + ", which NVML knows");
  std::vector<std::string> without_driver;
  for (const BusDevice& device : files.bus) {
    const bool is_known =
        in_driver(files, device.bdf) != nullptr ||
        std::any_of(nvml.devices.begin(), nvml.devices.end(),
                    [&](const NvmlDevice& other) { return other.bdf == device.bdf; });
    if (!is_known) without_driver.push_back(device.bdf);
  }
  if (!without_driver.empty() && (nvml.is_present || !files.driver.empty()))
    add_note(found.disagreements, "the PCI bus has " + joined(without_driver, ", ") +
                                      ", which the driver does not know");
}

std::vector<Gpu> gpus_of_nvml(const NvidiaFiles& files, const NvmlAnswer& nvml) {
  std::vector<Gpu> gpus;
  for (const NvmlDevice& device : nvml.devices) {
    const DriverDevice* driver = in_driver(files, device.bdf);
    if (driver != nullptr && !is_usable(files, *driver)) continue;
    gpus.push_back({device.bdf, device.uuid, device.model, device.is_mig_enabled, device.slices,
                    device.users, device.used_bytes, device.memory_bytes, device.fabric});
  }
  return gpus;
}

// As for GPUs: if no instance has files, the files were not removed on purpose.
std::vector<MigSlice> usable_slices(const NvidiaFiles& files, const DriverDevice& device) {
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

std::vector<Gpu> gpus_of_files(const NvidiaFiles& files, FoundDevices& found) {
  std::vector<Gpu> gpus;
  std::size_t hidden = 0;
  for (const DriverDevice& device : files.driver) {
    if (!is_usable(files, device)) continue;
    std::vector<MigSlice> slices = usable_slices(files, device);
    hidden += device.slices.size() - slices.size();
    if (slices.empty() && !device.slices.empty()) continue;
    gpus.push_back({device.bdf, device.uuid, device.model, !slices.empty(), slices, {}, 0, 0, ""});
  }
  if (hidden > 0)
    add_note(found.notes, counted(hidden, "MIG instance") +
                              " may not be used here: files in /dev/nvidia-caps cannot be opened");
  if (!gpus.empty() || !files.driver.empty()) return gpus;
  // A container may show device files without the driver's list. Then the bus gives the addresses,
  // if both have the same number of devices.
  const auto count = static_cast<std::size_t>(files.nodes);
  for (std::size_t i = 0; i < count; ++i) {
    Gpu gpu;
    if (files.bus.size() == count) gpu.bdf = files.bus[i].bdf;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void add_gpu(const Gpu& gpu, int index, const BusDevice* bus, FoundDevices& found) {
  FoundDevice device;
  device.gpu = index;
  device.bdf = gpu.bdf;
  device.model = gpu.model;
  device.fabric = gpu.fabric;
  set_location(bus, device);
  if (!gpu.is_mig_enabled) {
    device.uuid = gpu.uuid;
    device.users = gpu.users;
    device.used_bytes = gpu.used_bytes;
    device.memory_bytes = gpu.memory_bytes;
    found.devices.push_back(std::move(device));
    return;
  }
  // Without NVML an instance's UUID is unknown; CUDA also accepts its location.
  device.is_mig = true;
  for (const MigSlice& slice : gpu.slices) {
    FoundDevice part = device;
    part.uuid = !slice.uuid.empty() ? slice.uuid
                                    : "MIG-" + gpu.uuid + "/" + std::to_string(slice.gpu_instance) +
                                          "/" + std::to_string(slice.compute_instance);
    part.users = slice.users;
    part.used_bytes = slice.used_bytes;
    part.memory_bytes = slice.memory_bytes;
    found.devices.push_back(std::move(part));
  }
  if (gpu.slices.empty())
    add_note(found.disagreements,
             gpu.bdf + " is in MIG mode and has no instance: it cannot be used");
}

}  // namespace

NvidiaFiles read_nvidia_files(const std::string& root) {
  NvidiaFiles files;
  if (may_have_nvidia_on_bus(root))
    for (const std::string& name : names_in(root + "/sys/bus/pci/devices"))
      if (is_nvidia_display(root + "/sys/bus/pci/devices/" + name)) files.on_bus.push_back(name);
  for (const std::string& name : names_in(root + "/proc/driver/nvidia/gpus"))
    files.driver.push_back(read_driver_device(root, name));
  // A sandbox may hide /sys and /proc but show these files. Otherwise /dev with its many entries
  // need not be listed.
  const auto is_in_dev = [&](const char* name) {
    return node_state(root + "/dev/" + name) != NodeState::kAbsent;
  };
  if (!files.on_bus.empty() || is_in_dev("nvidiactl") || is_in_dev("nvidia0"))
    files.nodes = usable_nvidia_nodes(root);
  files.has_dxg = node_state(root + "/dev/dxg") == NodeState::kUsable;
  return files;
}

bool wants_nvml(const NvidiaFiles& files) {
  return !files.driver.empty() || files.nodes > 0 || files.has_dxg;
}

void add_nvidia(const NvidiaFiles& files, const NvmlAnswer& nvml, FoundDevices& found) {
  const std::vector<Gpu> gpus =
      nvml.is_present ? gpus_of_nvml(files, nvml) : gpus_of_files(files, found);
  for (std::size_t i = 0; i < gpus.size(); ++i)
    add_gpu(gpus[i], static_cast<int>(i), find_on_bus(files.bus, gpus[i].bdf), found);
  note_unusable(files, found);
  compare(files, nvml, found);
  if (!found.devices.empty()) {
    found.vendor = &device_vendor(Vendor::kNvidia);
    found.source = nvml.is_present ? "NVML " + nvml.driver_version : "files";
  } else if (files.driver.empty() && !nvml.is_present && !files.bus.empty()) {
    add_note(found.notes,
             counted(files.bus.size(), "NVIDIA device") +
                 " on the PCI bus without a driver: the module nvidia is not loaded, or "
                 "not shown to this container");
  }
}

}  // namespace ivy
