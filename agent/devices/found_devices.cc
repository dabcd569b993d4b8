// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/found_devices.h"

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {

void add_note(std::vector<std::string>& notes, std::string note) {
  if (notes.size() < kMaxDeviceNotes) notes.push_back(std::move(note));
}

const BusDevice* find_on_bus(const std::vector<BusDevice>& bus, const std::string& bdf) {
  const auto device = std::find_if(bus.begin(), bus.end(),
                                   [&](const BusDevice& other) { return other.bdf == bdf; });
  return device == bus.end() ? nullptr : &*device;
}

void set_location(const BusDevice* bus, FoundDevice& device) {
  if (bus == nullptr) return;
  device.numa_node = bus->numa_node;
  device.cores = bus->cores;
  device.interface = bus->interface;
  device.pci_switch = bus->pci_switch;
}

std::string normal_bdf(std::string text) {
  text = lower_case(text);
  // NVML writes the PCI domain with eight digits, the kernel with at least four.
  std::size_t colon = text.find(':');
  for (; colon != std::string::npos && colon > 4 && text.front() == '0'; --colon) text.erase(0, 1);
  return text;
}

}  // namespace ivy
