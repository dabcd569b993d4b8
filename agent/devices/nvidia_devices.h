// SPDX-License-Identifier: Apache-2.0
// NVIDIA's GPUs and their MIG instances: what the driver's files and NVML report, and which of them
// may be used. Thread: any.
//
//   /proc/driver/nvidia/gpus/*/information         the driver's devices
//   /proc/driver/nvidia/capabilities/gpu*/mig      parts of them (MIG)
//   /sys/bus/pci/devices/*                         0x10de of class 0x03* (display, 3D)
//   /dev/nvidia<minor>                             whether it may be used: containers, Slurm
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/devices/found_devices.h"
#include "agent/devices/small_files.h"

namespace ivy {

// A part of a GPU: GPU instance and compute instance. The UUID is known to NVML only.
struct MigSlice {
  int gpu_instance = 0;
  int compute_instance = 0;
  std::string uuid;
  NodeState node = NodeState::kAbsent;  // Whether its files in /dev/nvidia-caps can be opened.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  std::uint64_t memory_bytes = 0;  // In use, whoever uses it; 0: unknown.
};

// The entry of one accelerator in /proc/driver/nvidia/gpus.
struct DriverDevice {
  std::string bdf;  // The PCI address in lower case: "0000:07:00.0".
  int minor = -1;   // N of /dev/nvidiaN; -1: unknown.
  std::string uuid;
  std::string model;
  bool is_excluded = false;  // By the administrator, in the driver's parameters.
  NodeState node = NodeState::kAbsent;
  std::vector<MigSlice> slices;
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
  std::uint64_t memory_bytes = 0;
  std::string fabric;  // "CLUSTER/CLIQUE" of its NVLink domain; empty: none beyond this host.
};

// NVML's answers, as reported by ivy-probe.
struct NvmlAnswer {
  bool is_here = false;  // Otherwise `error` has the reason.
  std::string error;
  std::string driver_version;
  std::vector<NvmlDevice> devices;  // In NVML's order, which is that of addresses.
};

// The contents of the kernel's files.
struct NvidiaFiles {
  std::vector<DriverDevice> driver;
  std::vector<std::string> on_bus;  // Addresses as the bus writes them.
  std::vector<BusDevice> bus;       // The same devices, with their places.
  int nodes = 0;                    // How many files /dev/nvidia<N> are usable.
  bool has_dxg = false;             // /dev/dxg, by which NVIDIA's libraries work in WSL.
};

// Reads files only, and leaves `bus` to read_device_files(). A host without NVIDIA's devices costs
// one list of the PCI bus.
NvidiaFiles read_nvidia_files(const std::string& root);

// True if these files show that NVML, which costs a program start, is worth asking.
bool wants_nvml(const NvidiaFiles& files);

// NVML's answer counts if there is one, else the driver's files; both are compared with the bus and
// with each other. A GPU that is cut into MIG instances is listed as these. Pure.
void add_nvidia(const NvidiaFiles& files, const NvmlAnswer& nvml, FoundDevices& found);

}  // namespace ivy
