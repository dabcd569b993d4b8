// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/nvml_functions.h"

#include <dlfcn.h>

#include <array>

#include "agent/devices/found_devices.h"

namespace ivy::nvml {

Library::Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    error_ = dlerror();
    return;
  }
  load(init, "nvmlInit_v2");
  load(shutdown, "nvmlShutdown");
  load(count, "nvmlDeviceGetCount_v2");
  load(by_index, "nvmlDeviceGetHandleByIndex_v2");
  load(uuid, "nvmlDeviceGetUUID");
  load(pci_info, "nvmlDeviceGetPciInfo_v3");
  if (!error_.empty()) return;
  load_optional(error_string, "nvmlErrorString");
  load_optional(memory, "nvmlDeviceGetMemoryInfo");
  load_optional(mig_mode, "nvmlDeviceGetMigMode");
  load_optional(max_slices, "nvmlDeviceGetMaxMigDeviceCount");
  load_optional(slice_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
  // Older drivers only have version 2.
  load_optional(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (processes == nullptr) load_optional(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
}

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* Library::address_of(const char* symbol) const { return dlsym(handle_, symbol); }

std::string Library::text_of(Status status) const {
  if (error_string != nullptr) return error_string(status);
  return "error " + std::to_string(status);
}

std::string device_text(Status (*get)(Device, char*, unsigned), Device device) {
  std::array<char, kTextBytes> text{};
  if (get(device, text.data(), kTextBytes) != kSuccess) return {};
  text.back() = '\0';
  return text.data();
}

std::string device_bdf(const Library& library, Device device) {
  PciInfo pci{};
  if (library.pci_info(device, &pci) != kSuccess) return {};
  pci.bus_id[sizeof pci.bus_id - 1] = '\0';
  return normal_bdf(pci.bus_id);
}

}  // namespace ivy::nvml
