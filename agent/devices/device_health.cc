// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/device_health.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace ivy {
namespace {

struct XidMeaning {
  unsigned number;
  const char* text;
};

constexpr std::array kXids{
    XidMeaning{13, "graphics engine exception, often the program's own fault"},
    XidMeaning{31, "memory page fault, often the program's own fault"},
    XidMeaning{32, "corrupted command buffer"},
    XidMeaning{38, "driver firmware error"},
    XidMeaning{43, "GPU stopped processing, often the program's own fault"},
    XidMeaning{45, "preemptive cleanup, after another error or the end of its process"},
    XidMeaning{46, "GPU stopped processing"},
    XidMeaning{48, "double-bit ECC error"},
    XidMeaning{61, "internal micro-controller breakpoint"},
    XidMeaning{62, "internal micro-controller halt"},
    XidMeaning{63, "memory row remapped"},
    XidMeaning{64, "memory row could not be remapped"},
    XidMeaning{68, "video processor exception"},
    XidMeaning{69, "graphics engine class error, often the program's own fault"},
    XidMeaning{74, "NVLink error"},
    XidMeaning{79, "fallen off the bus"},
    XidMeaning{92, "high rate of single-bit ECC errors"},
    XidMeaning{94, "contained ECC error"},
    XidMeaning{95, "uncontained ECC error"},
    XidMeaning{109, "context switch timeout"},
    XidMeaning{110, "security fault"},
    XidMeaning{119, "GSP firmware did not answer"},
    XidMeaning{120, "GSP firmware error"},
    XidMeaning{121, "error of the link to the processor (C2C)"},
    XidMeaning{122, "firmware read failure"},
    XidMeaning{123, "power management unit failure"},
    XidMeaning{136, "chip-to-chip link training failure"},
    XidMeaning{137, "NVLink fault that ended a program's access to another GPU"},
    XidMeaning{140, "unrecovered ECC error"},
    XidMeaning{143, "GPU could not be initialized"},
    XidMeaning{144, "NVLink error"},
    XidMeaning{145, "NVLink error"},
    XidMeaning{146, "NVLink error"},
    XidMeaning{147, "NVLink error"},
    XidMeaning{148, "NVLink error"},
    XidMeaning{149, "NVLink error"},
    XidMeaning{150, "NVLink error"},
    XidMeaning{154, "recovery action changed"},
    XidMeaning{155, "NVLink software error"},
};

// Indexed by NVML_GPU_RECOVERY_ACTION_*.
constexpr std::array<const char*, 6> kRecovery{
    "",
    "needs a reset (nvidia-smi --gpu-reset)",
    "needs a reboot of its host",
    "needs to be drained from peer-to-peer traffic",
    "needs to be drained and reset",
    "needs a recovery of its IMEX domain",
};

std::string gpu_name(const GpuHealth& gpu) { return "GPU " + std::to_string(gpu.index); }

void compare_counters(const std::vector<FaultCounter>& before,
                      const std::vector<FaultCounter>& after, const DeviceFinding& of,
                      std::vector<DeviceFinding>& findings) {
  for (const FaultCounter& now : after) {
    const auto then = std::find_if(before.begin(), before.end(),
                                   [&](const FaultCounter& other) { return other.one == now.one; });
    if (then == before.end() || now.value <= then->value) continue;
    const std::uint64_t grown = now.value - then->value;
    DeviceFinding finding = of;
    finding.text = std::to_string(grown) + " " + (grown == 1 ? now.one : now.many);
    findings.push_back(std::move(finding));
  }
}

void compare_gpu(const GpuHealth& before, const GpuHealth* after,
                 std::vector<DeviceFinding>& findings) {
  DeviceFinding finding{gpu_name(before), before.bdf, 0, ""};
  if (after == nullptr || after->is_lost) {
    if (before.is_lost) return;
    finding.text = "NVML can no longer reach it";
    return findings.push_back(std::move(finding));
  }
  const int action = after->recovery_action;
  if (action > 0) {
    finding.text = static_cast<std::size_t>(action) < kRecovery.size()
                       ? kRecovery[static_cast<std::size_t>(action)]
                       : "needs the recovery action " + std::to_string(action);
    if (before.recovery_action == action) finding.text += ", as before";
    findings.push_back(finding);
  }
  compare_counters(before.counters, after->counters, finding, findings);
}

void compare_port(const PortHealth& before, const PortHealth* after,
                  std::vector<DeviceFinding>& findings) {
  DeviceFinding finding{before.name, "", 0, ""};
  if (after == nullptr) {
    finding.text = "has disappeared";
    return findings.push_back(std::move(finding));
  }
  if (after->state != before.state) {
    finding.text = "went from " + before.state + " to " + after->state;
    findings.push_back(finding);
  }
  compare_counters(before.counters, after->counters, finding, findings);
}

// The kernel writes addresses without the PCI function.
bool is_at(const GpuHealth& gpu, const std::string& bdf) {
  return !bdf.empty() && (gpu.bdf == bdf || gpu.bdf.starts_with(bdf + "."));
}

}  // namespace

const char* xid_meaning(unsigned number) {
  const auto known = std::find_if(kXids.begin(), kXids.end(),
                                  [number](const XidMeaning& xid) { return xid.number == number; });
  return known == kXids.end() ? "" : known->text;
}

std::vector<DeviceFinding> health_changes(const HostHealth& before, const HostHealth& after) {
  std::vector<DeviceFinding> findings;
  for (const GpuHealth& gpu : before.gpus) {
    const auto now = std::find_if(after.gpus.begin(), after.gpus.end(),
                                  [&](const GpuHealth& other) { return other.bdf == gpu.bdf; });
    compare_gpu(gpu, now == after.gpus.end() ? nullptr : &*now, findings);
  }
  for (const PortHealth& port : before.ports) {
    const auto now = std::find_if(after.ports.begin(), after.ports.end(),
                                  [&](const PortHealth& other) { return other.name == port.name; });
    compare_port(port, now == after.ports.end() ? nullptr : &*now, findings);
  }
  return findings;
}

std::vector<DeviceFinding> xid_findings(const std::vector<XidRecord>& records,
                                        const std::vector<GpuHealth>& gpus) {
  std::vector<DeviceFinding> findings;
  std::set<std::pair<std::string, unsigned>> reported;  // Devices and error codes.
  for (const XidRecord& record : records) {
    DeviceFinding finding{"NVSwitch " + record.bdf, "", record.at_ns, ""};
    if (!record.is_switch) {
      finding.xid = record.number;
      const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const GpuHealth& other) {
        return is_at(other, record.bdf);
      });
      if (gpu == gpus.end()) continue;  // A GPU that this job cannot see.
      finding.device = gpu_name(*gpu);
      finding.bdf = gpu->bdf;
    }
    if (!reported.emplace(finding.device, record.number).second) continue;
    finding.text = (record.is_switch ? "SXid " : "Xid ") + std::to_string(record.number);
    const std::string meaning = record.is_switch ? "" : xid_meaning(record.number);
    if (!meaning.empty()) finding.text += ", " + meaning;
    if (!record.process.empty()) finding.text += ", " + record.process;
    findings.push_back(std::move(finding));
  }
  std::stable_sort(
      findings.begin(), findings.end(),
      [](const DeviceFinding& a, const DeviceFinding& b) { return a.at_ns < b.at_ns; });
  return findings;
}

}  // namespace ivy
