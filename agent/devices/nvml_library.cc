// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/nvml_library.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "agent/devices/nvml_functions.h"
#include "agent/devices/nvml_processes.h"

namespace ivy {
namespace {

// Functions that only discovery needs.
struct DiscoveryCalls {
  explicit DiscoveryCalls(const nvml::Library& library) {
    library.load_optional(driver_version, "nvmlSystemGetDriverVersion");
    library.load_optional(name, "nvmlDeviceGetName");
    library.load_optional(minor, "nvmlDeviceGetMinorNumber");
    library.load_optional(gpu_instance, "nvmlDeviceGetGpuInstanceId");
    library.load_optional(compute_instance, "nvmlDeviceGetComputeInstanceId");
    library.load_optional(fabric_info, "nvmlDeviceGetGpuFabricInfoV");
  }
  nvml::Status (*driver_version)(char*, unsigned) = nullptr;
  nvml::Status (*name)(nvml::Device, char*, unsigned) = nullptr;
  nvml::Status (*minor)(nvml::Device, unsigned*) = nullptr;
  nvml::Status (*gpu_instance)(nvml::Device, unsigned*) = nullptr;
  nvml::Status (*compute_instance)(nvml::Device, unsigned*) = nullptr;
  nvml::Status (*fabric_info)(nvml::Device, nvml::FabricInfo*) = nullptr;
};

template <class Entry>
void add_users(const nvml::Library& library, nvml::Device device, Entry& entry) {
  entry.memory_bytes = nvml::memory_in_use(library, device);
  for (const nvml::DeviceUser& user : nvml::device_users(library, device)) {
    entry.users.push_back(user.pid);
    entry.used_bytes += user.bytes;
  }
}

int number_of(nvml::Status (*get)(nvml::Device, unsigned*), nvml::Device device, int otherwise) {
  unsigned number = 0;
  if (get == nullptr || get(device, &number) != nvml::kSuccess) return otherwise;
  return static_cast<int>(number);
}

// Returns "CLUSTER/CLIQUE" of the NVLink domain; empty if the domain does not reach beyond this
// host.
std::string fabric_of(const DiscoveryCalls& calls, nvml::Device device) {
  nvml::FabricInfo info{};
  info.version = nvml::kFabricInfo2;
  if (calls.fabric_info == nullptr || calls.fabric_info(device, &info) != nvml::kSuccess ||
      info.state != nvml::kFabricCompleted || info.status != nvml::kSuccess)
    return {};
  const bool has_cluster = std::any_of(std::begin(info.cluster), std::end(info.cluster),
                                       [](unsigned char byte) { return byte != 0; });
  if (!has_cluster) return {};
  std::string text;
  for (const unsigned char byte : info.cluster) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  for (const std::size_t dash : {20u, 16u, 12u, 8u}) text.insert(dash, "-");
  return text + "/" + std::to_string(info.clique);
}

void add_slices(const nvml::Library& library, const DiscoveryCalls& calls, nvml::Device device,
                NvmlDevice& found) {
  for (const nvml::Device part : nvml::slices_of(library, device)) {
    MigSlice slice;
    slice.uuid = nvml::device_text(library.uuid, part);
    slice.gpu_instance = number_of(calls.gpu_instance, part, 0);
    slice.compute_instance = number_of(calls.compute_instance, part, 0);
    add_users(library, part, slice);
    found.slices.push_back(std::move(slice));
  }
}

NvmlDevice read_device(const nvml::Library& library, const DiscoveryCalls& calls,
                       nvml::Device device) {
  NvmlDevice found;
  found.uuid = nvml::device_text(library.uuid, device);
  if (calls.name != nullptr) found.model = nvml::device_text(calls.name, device);
  found.bdf = nvml::device_bdf(library, device);
  found.minor = number_of(calls.minor, device, -1);
  found.fabric = fabric_of(calls, device);
  found.is_mig_enabled = nvml::is_in_mig_mode(library, device);
  if (found.is_mig_enabled) {
    add_slices(library, calls, device, found);
  } else {
    // On a device with instances, the processes belong to the instances.
    add_users(library, device, found);
  }
  return found;
}

}  // namespace

NvmlAnswer query_nvml() {
  NvmlAnswer answer;
  const nvml::Library library;
  answer.error = library.error();
  if (!answer.error.empty()) return answer;
  const nvml::Status begun = library.init();
  if (begun != nvml::kSuccess) {
    answer.error = "nvmlInit: " + library.text_of(begun);
    return answer;
  }
  const DiscoveryCalls calls(library);
  std::array<char, nvml::kTextBytes> version{};
  if (calls.driver_version != nullptr &&
      calls.driver_version(version.data(), nvml::kTextBytes) == nvml::kSuccess)
    answer.driver_version = version.data();
  unsigned count = 0;
  const nvml::Status counted = library.count(&count);
  answer.is_present = counted == nvml::kSuccess;
  if (!answer.is_present) answer.error = "nvmlDeviceGetCount: " + library.text_of(counted);
  for (unsigned i = 0; i < std::min(count, nvml::kMaxDevices); ++i) {
    nvml::Device device = nullptr;
    // A lost or forbidden device has no handle; the files reveal it.
    if (library.by_index(i, &device) == nvml::kSuccess)
      answer.devices.push_back(read_device(library, calls, device));
  }
  library.shutdown();
  return answer;
}

}  // namespace ivy
