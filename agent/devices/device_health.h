// SPDX-License-Identifier: Apache-2.0
// Fault counters of devices and ports, and the changes between two readings. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

// A counter that only grows, with its singular and plural names for messages: "uncorrected ECC
// error" and "uncorrected ECC errors".
struct FaultCounter {
  std::string one;
  std::string many;
  std::uint64_t value = 0;
};

// A GPU, with nvidia-smi's number for it. Unknown values are -1.
struct GpuHealth {
  int index = 0;
  std::string bdf;
  bool is_lost = false;  // NVML lists its address but does not answer for it.
  int recovery_action = -1;
  std::vector<FaultCounter> counters;
};

// An InfiniBand or RoCE port: "mlx5_0 port 1", "ACTIVE".
struct PortHealth {
  std::string name;
  std::string state;
  std::vector<FaultCounter> counters;
};

struct HostHealth {
  std::vector<GpuHealth> gpus;
  std::vector<PortHealth> ports;
};

// A fact that may explain a failure.
struct DeviceFinding {
  std::string device;       // "GPU 3", "mlx5_0 port 1"
  std::string bdf;          // Empty for a port.
  std::uint64_t at_ns = 0;  // CLOCK_MONOTONIC; 0 if known only to lie between the two readings.
  std::string text;         // "Xid 79, fallen off the bus"
  unsigned xid = 0;         // The Xid of a GPU; 0 for anything else.
  bool operator==(const DeviceFinding&) const = default;
};

// Compares two readings. Skips values that are missing in either one.
std::vector<DeviceFinding> health_changes(const HostHealth& before, const HostHealth& after);

// One of the driver's error codes (Xid). The kernel log gives addresses without the PCI function,
// and often names the process.
struct XidRecord {
  std::string bdf;
  unsigned number = 0;
  std::uint64_t at_ns = 0;
  std::string process;     // "pid 4711 (python3)"; empty if unknown.
  bool is_switch = false;  // The code belongs to an NVSwitch (SXid).
};

// Reports each code once per device, in chronological order. `gpus` supplies the device numbers
// that users know.
std::vector<DeviceFinding> xid_findings(const std::vector<XidRecord>& records,
                                        const std::vector<GpuHealth>& gpus);

// Returns the meaning of a common Xid, after NVIDIA's "Xid Errors"; empty if not in the table.
const char* xid_meaning(unsigned number);

}  // namespace ivy
