#include "agent/devices/device_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "agent/devices/small_files.h"

namespace ivy {
namespace {

// Asks for the rights, does not open: opening an NVIDIA device that nobody uses initialises it,
// which takes a second and more. The kernel asks the control group of devices here, too.
NodeState node_state(const std::string& path) {
  if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) == 0) return NodeState::kUsable;
  return errno == ENOENT ? NodeState::kAbsent : NodeState::kForbidden;
}

bool is_all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The number behind a prefix: "gi7" and "gi" give 7; -1 when it is none.
int number_behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  text.remove_prefix(prefix.size());
  int number = -1;
  if (is_all_digits(text)) std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

struct NetworkDevice {
  std::string interface;
  std::string place;  // Its directory in /sys/devices.
};

std::vector<NetworkDevice> network_devices(const std::string& root) {
  std::vector<NetworkDevice> found;
  for (const std::string& name : names_in(root + "/sys/class/net")) {
    // Bridges, tunnels and the loopback have no device behind them.
    std::string place = resolved(root + "/sys/class/net/" + name + "/device");
    if (!place.empty()) found.push_back({name, std::move(place)});
  }
  return found;
}

// How many directories two paths have in common.
std::size_t common_parts(std::string_view one, std::string_view other) {
  std::size_t parts = 0;
  for (std::size_t i = 0; i < one.size() && i < other.size() && one[i] == other[i]; ++i)
    if (one[i] == '/') ++parts;
  return parts;
}

// The interface behind the same switch, else behind the same root complex; empty when there is
// none.
std::string nearest_interface(const std::string& place,
                              const std::vector<NetworkDevice>& interfaces) {
  const std::size_t root_begin = place.find("/pci");
  if (root_begin == std::string::npos) return {};
  // Everything up to and with ".../pci0000:00/" must be equal.
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

BusDevice read_bus_device(const std::string& root, const std::string& bdf,
                          const std::vector<NetworkDevice>& interfaces) {
  const std::string directory = root + "/sys/bus/pci/devices/" + bdf;
  BusDevice device;
  device.bdf = normal_bdf(bdf);
  device.numa_node = number_in(directory + "/numa_node", -1);
  device.cores = first_line(directory + "/local_cpulist");
  device.interface = nearest_interface(resolved(directory), interfaces);
  return device;
}

// A process needs the files of the GPU instance and of the compute instance.
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
    const int gpu_instance = number_behind(name, "gi");
    if (gpu_instance < 0) continue;
    for (const std::string& part : names_in(mig + "/" + name)) {
      const int compute_instance = number_behind(part, "ci");
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
  // Until the device has been initialised the driver does not know it, and says so.
  if (device.uuid.find('?') != std::string::npos) device.uuid.clear();
  device.is_excluded = value_after(text, "GPU Excluded") == "Yes";
  const std::string minor = value_after(text, "Device Minor");
  if (is_all_digits(minor)) device.minor = number_behind(minor, "");
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

// False: the kernel's list of the bus, which is read at once, has nothing of NVIDIA's. Where there
// is no such list each device is looked at.
bool may_have_nvidia_on_bus(const std::string& root) {
  // A line is "BUSDEVFN <tab> VENDORDEVICE <tab> ...".
  const std::string list = small_file(root + "/proc/bus/pci/devices");
  return list.empty() || list.find("\t10de") != std::string::npos;
}

int usable_nvidia_nodes(const std::string& root) {
  int count = 0;
  for (const std::string& name : names_in(root + "/dev"))
    if (number_behind(name, "nvidia") >= 0 &&
        node_state(root + "/dev/" + name) == NodeState::kUsable)
      ++count;
  return count;
}

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

// The processes that have memory of it, or a queue on it. kfd has a directory for each process that
// has opened it.
void read_amd_users(const std::string& root, const std::string& gpu_id, AmdDevice& device) {
  if (gpu_id.empty()) return;
  const std::string processes = root + "/sys/class/kfd/kfd/proc";
  for (const std::string& name : names_in(processes)) {
    const int pid = number_behind(name, "");
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

std::vector<AmdDevice> read_amd(const std::string& root) {
  const std::string nodes = root + "/sys/class/kfd/kfd/topology/nodes";
  std::vector<std::string> names = names_in(nodes);
  // "10" comes behind "9".
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  std::vector<AmdDevice> found;
  for (const std::string& name : names) {
    const std::string text = small_file(nodes + "/" + name + "/properties");
    if (property(text, "simd_count") == 0) continue;
    AmdDevice device;
    device.bdf = bdf_of_location(property(text, "domain"), property(text, "location_id"));
    if (const std::uint64_t id = property(text, "unique_id"); id != 0) {
      char uuid[32];
      std::snprintf(uuid, sizeof uuid, "GPU-%016llx", static_cast<unsigned long long>(id));
      device.uuid = uuid;
    }
    const std::string render =
        root + "/dev/dri/renderD" + std::to_string(property(text, "drm_render_minor"));
    const bool is_usable = node_state(render) == NodeState::kUsable &&
                           node_state(root + "/dev/kfd") == NodeState::kUsable;
    device.node = is_usable ? NodeState::kUsable : NodeState::kForbidden;
    read_amd_users(root, first_line(nodes + "/" + name + "/gpu_id"), device);
    found.push_back(std::move(device));
  }
  return found;
}

}  // namespace

DeviceFiles read_device_files(const std::string& root) {
  DeviceFiles files;
  std::vector<std::string> on_bus;
  if (may_have_nvidia_on_bus(root))
    for (const std::string& name : names_in(root + "/sys/bus/pci/devices"))
      if (is_nvidia_display(root + "/sys/bus/pci/devices/" + name)) on_bus.push_back(name);
  for (const std::string& name : names_in(root + "/proc/driver/nvidia/gpus"))
    files.driver.push_back(read_driver_device(root, name));
  files.amd = read_amd(root);
  // A sandbox may hide /sys and /proc and show these. Elsewhere the many files of /dev need not be
  // listed.
  const auto is_in_dev = [&](const char* name) {
    return node_state(root + "/dev/" + name) != NodeState::kAbsent;
  };
  if (!on_bus.empty() || is_in_dev("nvidiactl") || is_in_dev("nvidia0"))
    files.nvidia_nodes = usable_nvidia_nodes(root);
  files.has_dxg = access((root + "/dev/dxg").c_str(), R_OK | W_OK) == 0;
  if (on_bus.empty() && files.driver.empty() && files.amd.empty()) return files;
  const std::vector<NetworkDevice> interfaces = network_devices(root);
  for (const std::string& name : on_bus)
    files.nvidia.push_back(read_bus_device(root, name, interfaces));
  for (const AmdDevice& device : files.amd)
    files.amd_bus.push_back(read_bus_device(root, device.bdf, interfaces));
  return files;
}

std::string device_root() {
  const char* root = secure_getenv("IVY_DEVICE_ROOT");
  return root != nullptr ? root : "";
}

}  // namespace ivy
