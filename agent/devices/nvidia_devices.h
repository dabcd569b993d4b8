// SPDX-License-Identifier: Apache-2.0
// NVIDIA's GPUs and MIG instances as reported by the driver's files and by NVML, and whether each
// may be used. Thread: any.
//
//   /proc/driver/nvidia/gpus/*/information         the driver's devices
//   /proc/driver/nvidia/capabilities/gpu*/mig      their MIG instances
//   /sys/bus/pci/devices/*                         0x10de of class 0x03* (display, 3D)
//   /dev/nvidia<minor>                             permission to use it: containers, Slurm
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/devices/found_devices.h"
#include "agent/devices/small_files.h"

namespace ivy {

// A MIG instance: a GPU instance and a compute instance in it. Only NVML knows the UUID.
struct MigSlice {
  int gpu_instance = 0;
  int compute_instance = 0;
  std::string uuid;
  NodeState node = NodeState::kAbsent;  // Whether its files in /dev/nvidia-caps may be opened.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  std::uint64_t memory_bytes = 0;  // In use by any process; 0 if unknown.
};

// The entry of one accelerator in /proc/driver/nvidia/gpus.
struct DriverDevice {
  std::string bdf;  // The PCI address in lower case: "0000:07:00.0".
  int minor = -1;   // N of /dev/nvidiaN; -1 if unknown.
  std::string uuid;
  std::string model;
  bool is_excluded = false;  // The administrator disabled it in the driver's parameters.
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
  std::string fabric;  // "CLUSTER/CLIQUE" of its NVLink domain; empty if that is only this host.
};

// NVML's answers, as reported by ivy-probe.
struct NvmlAnswer {
  bool is_present = false;  // If false, `error` has the reason.
  std::string error;
  std::string driver_version;
  std::vector<NvmlDevice> devices;  // In NVML's order, which is by address.
};

// The contents of the kernel's files.
struct NvidiaFiles {
  std::vector<DriverDevice> driver;
  std::vector<std::string> on_bus;  // Addresses in the bus's format.
  std::vector<BusDevice> bus;       // The same devices, with their locations.
  int nodes = 0;                    // Number of usable files /dev/nvidia<N>.
  bool has_dxg = false;             // /dev/dxg, the device that NVIDIA's libraries use in WSL.
};

// Reads files only; read_device_files() fills in `bus`. On a host without NVIDIA devices this costs
// one listing of the PCI bus.
NvidiaFiles read_nvidia_files(const std::string& root);

// Returns true if these files justify querying NVML, which costs a program start.
bool wants_nvml(const NvidiaFiles& files);

// Takes the devices from NVML's answer, or from the driver's files if NVML did not answer, and
// compares both with the bus and with each other. A GPU in MIG mode is listed as its instances.
// Pure.
void add_nvidia(const NvidiaFiles& files, const NvmlAnswer& nvml, FoundDevices& found);

}  // namespace ivy
