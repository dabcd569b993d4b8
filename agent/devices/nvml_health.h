// SPDX-License-Identifier: Apache-2.0
// Health of the GPUs as reported by NVML, and the processes that hold their memory. Not
// thread-safe; also has an internal listening thread. Calls may block if a driver hangs, so this
// runs in ivy-probe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "agent/devices/device_health.h"
#include "agent/devices/nvml_functions.h"
#include "agent/devices/watch_answer.h"

namespace ivy {

class NvmlHealth {
 public:
  NvmlHealth();
  NvmlHealth(const NvmlHealth&) = delete;
  NvmlHealth& operator=(const NvmlHealth&) = delete;

  // The reason why NVML cannot be used; empty if it can.
  const std::string& error() const { return error_; }
  std::vector<GpuHealth> read_gpus() const;
  std::vector<HeldMemory> read_memory() const;

  // Starts a thread that collects error codes until the process exits.
  void listen();
  // Returns the codes collected so far, in chronological order.
  std::vector<XidRecord> xids() const;
  void forget_xids();

 private:
  struct Calls {
    nvml::Status (*field_values)(nvml::Device, int, nvml::FieldValue*) = nullptr;
    nvml::Status (*ecc_errors)(nvml::Device, int type, int counter, unsigned long long*) = nullptr;
    nvml::Status (*utilization)(nvml::Device, nvml::Utilization*) = nullptr;
    nvml::Status (*create_events)(nvml::EventSet*) = nullptr;
    nvml::Status (*register_events)(nvml::Device, unsigned long long, nvml::EventSet) = nullptr;
    nvml::Status (*wait_event)(nvml::EventSet, nvml::EventData*, unsigned timeout_ms) = nullptr;
  };
  GpuHealth read_gpu(nvml::Device device, int index) const;
  int busy_percent_of(nvml::Device device) const;
  void read_links(nvml::Device device, GpuHealth& gpu) const;
  void take_events(nvml::EventSet events);

  const nvml::Library library_;
  Calls calls_;
  std::string error_;
  mutable std::mutex mutex_;  // Guards xids_.
  std::vector<XidRecord> xids_;
};

}  // namespace ivy
