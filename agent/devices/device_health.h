// SPDX-License-Identifier: Apache-2.0
// Fault counters of devices and ports, and the changes between two readings. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ivy {

// One number that only grows, and its name in a sentence, as "uncorrected ECC error" and
// "uncorrected ECC errors".
struct FaultCounter {
  std::string one;
  std::string many;
  std::uint64_t value = 0;
};

// A GPU, with nvidia-smi's number for it. Unknown values are -1.
struct GpuHealth {
  int index = 0;
  std::string bdf;
  bool is_lost = false;  // NVML has an address of it and no answer from it.
  int recovery_action = -1;
  std::vector<FaultCounter> counters;
};

// A port of InfiniBand or RoCE: "mlx5_0 port 1", "ACTIVE".
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
  std::string bdf;          // Empty where it is no GPU.
  std::uint64_t at_ns = 0;  // CLOCK_MONOTONIC; 0: at some time between the two readings.
  std::string text;         // "Xid 79, fallen off the bus"
  bool operator==(const DeviceFinding&) const = default;
};

// Values that are missing in either reading are not compared.
std::vector<DeviceFinding> health_changes(const HostHealth& before, const HostHealth& after);

// One of the driver's error codes. The kernel's log has addresses without their function, and
// often the process.
struct XidRecord {
  std::string bdf;
  unsigned number = 0;
  std::uint64_t at_ns = 0;
  std::string process;     // "pid 4711 (python3)"; empty: unknown.
  bool is_switch = false;  // The code is an NVSwitch's (SXid).
};

// Each code of a device once, in the order of time; the GPUs give the numbers that people know.
std::vector<DeviceFinding> xid_findings(const std::vector<XidRecord>& records,
                                        const std::vector<GpuHealth>& gpus);

// The meaning of the usual ones, after NVIDIA's "Xid Errors"; empty: not in the table.
const char* xid_meaning(unsigned number);

}  // namespace ivy
