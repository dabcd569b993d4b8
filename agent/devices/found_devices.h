// What the sources of knowledge about accelerators say, each for itself, and the one list that is
// made of them. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

// May its file in /dev be used? A control group of devices (Slurm, containers) answers as missing
// rights do.
enum class NodeState { kUsable, kAbsent, kForbidden };

// A part of a GPU: GPU instance and compute instance. The UUID is known to NVML only.
struct MigSlice {
  int gpu_instance = 0;
  int compute_instance = 0;
  std::string uuid;
  NodeState node = NodeState::kAbsent;  // Its files in /dev/nvidia-caps.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

// One directory of /proc/driver/nvidia/gpus.
struct DriverDevice {
  std::string bdf;  // "0000:07:00.0", lower case.
  int minor = -1;   // Of /dev/nvidia<minor>; -1: unknown.
  std::string uuid;
  std::string model;
  bool is_excluded = false;  // By the administrator, in the driver's parameters.
  NodeState node = NodeState::kAbsent;
  std::vector<MigSlice> slices;
};

// One accelerator on the PCI bus, with or without a driver.
struct BusDevice {
  std::string bdf;
  int numa_node = -1;
  std::string cores;      // Near it; as the kernel writes it.
  std::string interface;  // Network interface with the nearest common PCI root; may be empty.
};

// One node of the kfd topology with compute units.
struct AmdDevice {
  std::string bdf;
  std::string uuid;  // "GPU-1234567890abcdef", ROCm's form; empty where the driver has none.
  NodeState node = NodeState::kAbsent;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

// All that files tell.
struct DeviceFiles {
  std::vector<DriverDevice> driver;  // By address.
  std::vector<BusDevice> nvidia;     // By address: on the bus.
  std::vector<AmdDevice> amd;        // In the order of the topology, which is ROCm's.
  std::vector<BusDevice> amd_bus;
  int nvidia_nodes = 0;  // Usable files /dev/nvidia<N>.
  bool has_dxg = false;  // /dev/dxg, by which NVIDIA's libraries work in WSL.
};

// One device as NVML knows it.
struct NvmlDevice {
  std::string bdf;
  std::string uuid;
  std::string model;
  int minor = -1;
  bool is_mig_enabled = false;
  std::vector<MigSlice> slices;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

// What NVML said through ivy-probe.
struct NvmlAnswer {
  bool is_here = false;  // Else `error` says why not.
  std::string error;
  std::string driver_version;
  std::vector<NvmlDevice> devices;  // In NVML's order, which is that of addresses.
};

// A device that a process could use if nothing hid it.
struct FoundDevice {
  int gpu = 0;  // Place of its GPU among those of the list, as masks count them.
  std::string bdf;
  std::string uuid;
  std::string model;
  bool is_mig = false;
  int numa_node = -1;
  std::string cores;
  std::string interface;
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
};

struct FoundDevices {
  std::string vendor;  // "nvidia", "amd" or empty.
  std::string source;  // "NVML 535.104.05", "files".
  std::vector<FoundDevice> devices;
  // At most kMaxDeviceNotes each.
  std::vector<std::string> notes;          // What cannot be used, and why.
  std::vector<std::string> disagreements;  // Between sources, and what somebody should look at.
  int unusable = 0;                        // Devices that are there and cannot be opened.
};

inline constexpr std::size_t kMaxDeviceNotes = 16;

// NVML counts where it answered, else the driver's files; both are compared with the bus and with
// each other. A GPU that is cut into MIG instances stands in the list as these. Where there is no
// NVIDIA device that can be used, AMD's are taken: a job does not mix vendors.
FoundDevices combine_findings(const DeviceFiles& files, const NvmlAnswer& nvml);

// "0000:07:00.0" from "00000000:07:00.0" and "0000:07:00.0", in lower case.
std::string normal_bdf(std::string text);

}  // namespace ivy
