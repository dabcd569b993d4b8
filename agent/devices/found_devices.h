// SPDX-License-Identifier: Apache-2.0
// The list of a host's accelerators, merged from all sources, and helpers shared by all vendors.
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/device_vendor.h"

namespace ivy {

// One accelerator on the PCI bus, with or without a driver.
struct BusDevice {
  std::string bdf;
  int numa_node = -1;
  std::string cores;       // Processors near it, in the kernel's list format.
  std::string interface;   // Network interface with the nearest common PCI root; may be empty.
  std::string pci_switch;  // The PCI switch above it, or its root complex.
};

// A device as its kernel driver lists it. NVIDIA's driver reports more (nvidia_devices.h).
struct ListedDevice {
  std::string bdf;
  std::string uuid;        // Empty if the driver has none.
  int tiles = 1;           // Each is a separate device.
  bool is_usable = false;  // The permissions of its files in /dev allow its use.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  BusDevice bus;  // The same device with its location; set by read_device_files().
};

// A device that a process could use if no mask hid it.
struct FoundDevice {
  int gpu = 0;  // Index of its GPU among the listed GPUs, as masks count them.
  std::string bdf;
  std::string uuid;
  std::string model;
  bool is_mig = false;
  int numa_node = -1;
  std::string cores;
  std::string interface;
  std::string pci_switch;
  std::string fabric;  // "CLUSTER/CLIQUE" of its NVLink domain; empty if that is only this host.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  std::uint64_t memory_bytes = 0;  // In use by any process; 0 if unknown.
};

struct FoundDevices {
  const DeviceVendor* vendor = nullptr;  // Set if there is a device.
  std::string source;                    // "NVML 535.104.05" or "files".
  std::vector<FoundDevice> devices;
  // `notes` and `disagreements` are limited to kMaxDeviceNotes entries each.
  std::vector<std::string> notes;          // Devices that cannot be used, with the reasons.
  std::vector<std::string> disagreements;  // Contradictions between sources, for the administrator.
  int unusable = 0;                        // Devices that exist but cannot be opened.
};

inline constexpr std::size_t kMaxDeviceNotes = 16;

// Appends the note unless there are already kMaxDeviceNotes.
void add_note(std::vector<std::string>& notes, std::string note);

// Returns the device with this address, or null if it is not on the bus.
const BusDevice* find_on_bus(const std::vector<BusDevice>& bus, const std::string& bdf);

// Copies the device's location from the bus; does nothing if `bus` is null.
void set_location(const BusDevice* bus, FoundDevice& device);

// Returns "0000:07:00.0" for "00000000:07:00.0" and for "0000:07:00.0", in lower case.
std::string normal_bdf(std::string text);

}  // namespace ivy
