// SPDX-License-Identifier: Apache-2.0
// The list of a host's accelerators, merged from all sources, and what is common to all vendors.
// Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

// One accelerator on the PCI bus, with or without a driver.
struct BusDevice {
  std::string bdf;
  int numa_node = -1;
  std::string cores;       // Near it; as the kernel writes it.
  std::string interface;   // Network interface with the nearest common PCI root; may be empty.
  std::string pci_switch;  // The PCI switch that it stands behind, else its root complex.
};

// A device that a process could use if nothing hid it.
struct FoundDevice {
  int gpu = 0;  // Index of its GPU among those of the list, as masks count them.
  std::string bdf;
  std::string uuid;
  std::string model;
  bool is_mig = false;
  int numa_node = -1;
  std::string cores;
  std::string interface;
  std::string pci_switch;
  std::string fabric;  // "CLUSTER/CLIQUE" of its NVLink domain; empty: none beyond this host.
  std::vector<int> users;
  std::uint64_t used_bytes = 0;
  std::uint64_t memory_bytes = 0;  // In use, whoever uses it; 0: unknown.
};

struct FoundDevices {
  std::string vendor;  // "nvidia", "amd", "intel" or empty.
  std::string source;  // Source of the devices: "NVML 535.104.05", or "files".
  std::vector<FoundDevice> devices;
  // Each of the two has kMaxDeviceNotes entries at most.
  std::vector<std::string> notes;          // Devices that cannot be used, with the reasons.
  std::vector<std::string> disagreements;  // Between sources, for the administrator.
  int unusable = 0;                        // Devices that are there and cannot be opened.
};

inline constexpr std::size_t kMaxDeviceNotes = 16;

// At most kMaxDeviceNotes are kept.
void add_note(std::vector<std::string>& notes, std::string note);

// The device with this address; null when the bus has none.
const BusDevice* find_on_bus(const std::vector<BusDevice>& bus, const std::string& bdf);

// Copies what the bus knows about a device; null: nothing.
void set_place(const BusDevice* bus, FoundDevice& device);

// "0000:07:00.0" from "00000000:07:00.0" and "0000:07:00.0", in lower case.
std::string normal_bdf(std::string text);

}  // namespace ivy
