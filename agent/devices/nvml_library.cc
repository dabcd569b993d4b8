#include "agent/devices/nvml_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace ivy {
namespace {

// NVML's binary interface, as far as it is used: versioned symbols, stable since R470.
using Status = int;
constexpr Status kSuccess = 0;
constexpr Status kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;

struct DeviceTag;
using Device = DeviceTag*;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

struct ProcessInfo {  // As nvmlDeviceGetComputeRunningProcesses_v2 and _v3 have it.
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

constexpr unsigned kMaxDevices = 64;
constexpr unsigned kMaxSlices = 16;
constexpr std::size_t kUsualProcesses = 16;
// More than a device can serve.
constexpr std::size_t kMaxProcesses = 4096;
constexpr unsigned kTextBytes = 96;

class NvmlLibrary {
 public:
  NvmlLibrary() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      error_ = dlerror();
      return;
    }
    load(init, "nvmlInit_v2");
    load(shutdown, "nvmlShutdown");
    load(driver_version, "nvmlSystemGetDriverVersion");
    load(count, "nvmlDeviceGetCount_v2");
    load(by_index, "nvmlDeviceGetHandleByIndex_v2");
    load(uuid, "nvmlDeviceGetUUID");
    load(name, "nvmlDeviceGetName");
    load(pci_info, "nvmlDeviceGetPciInfo_v3");
    load(minor, "nvmlDeviceGetMinorNumber");
    if (!error_.empty()) return;
    // Drivers before R450 know no MIG, and older ones list processes in another form.
    load_if_there(error_string, "nvmlErrorString");
    load_if_there(mig_mode, "nvmlDeviceGetMigMode");
    load_if_there(max_slices, "nvmlDeviceGetMaxMigDeviceCount");
    load_if_there(slice_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
    load_if_there(gpu_instance, "nvmlDeviceGetGpuInstanceId");
    load_if_there(compute_instance, "nvmlDeviceGetComputeInstanceId");
    load_if_there(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (processes == nullptr) load_if_there(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
  }
  ~NvmlLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  const std::string& error() const { return error_; }
  std::string text_of(Status status) const {
    if (error_string != nullptr) return error_string(status);
    return "error " + std::to_string(status);
  }

  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  const char* (*error_string)(Status) = nullptr;
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*by_index)(unsigned, Device*) = nullptr;
  Status (*uuid)(Device, char*, unsigned) = nullptr;
  Status (*name)(Device, char*, unsigned) = nullptr;
  Status (*pci_info)(Device, PciInfo*) = nullptr;
  Status (*minor)(Device, unsigned*) = nullptr;
  Status (*mig_mode)(Device, unsigned* current, unsigned* pending) = nullptr;
  Status (*max_slices)(Device, unsigned*) = nullptr;
  Status (*slice_by_index)(Device, unsigned, Device*) = nullptr;
  Status (*gpu_instance)(Device, unsigned*) = nullptr;
  Status (*compute_instance)(Device, unsigned*) = nullptr;
  Status (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;

 private:
  template <class Function>
  void load_if_there(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
  }
  template <class Function>
  void load(Function& function, const char* symbol) {
    load_if_there(function, symbol);
    if (function == nullptr && error_.empty())
      error_ = std::string("libnvidia-ml.so.1 has no ") + symbol;
  }

  void* handle_;
  std::string error_;
};

using GetText = Status (*)(Device, char*, unsigned);

std::string text_of(GetText get, Device device) {
  std::array<char, kTextBytes> text{};
  if (get(device, text.data(), kTextBytes) != kSuccess) return {};
  text.back() = '\0';
  return text.data();
}

template <class Place>
void add_users(const NvmlLibrary& nvml, Device device, Place& place) {
  if (nvml.processes == nullptr) return;
  std::vector<ProcessInfo> infos(kUsualProcesses);
  auto count = static_cast<unsigned>(infos.size());
  Status status = nvml.processes(device, &count, infos.data());
  // With too little room NVML returns only the count; a few processes may start in the meantime.
  if (status == kInsufficientSize) {
    infos.resize(std::min(count + kUsualProcesses, kMaxProcesses));
    count = static_cast<unsigned>(infos.size());
    status = nvml.processes(device, &count, infos.data());
  }
  // Without rights for others' processes the list is empty.
  if (status != kSuccess || count > infos.size()) return;
  for (unsigned i = 0; i < count; ++i) {
    place.users.push_back(static_cast<int>(infos[i].pid));
    if (infos[i].used_bytes != kNotAvailable) place.used_bytes += infos[i].used_bytes;
  }
}

void add_slices(const NvmlLibrary& nvml, Device device, NvmlDevice& told) {
  unsigned current = 0;
  unsigned pending = 0;
  if (nvml.mig_mode == nullptr || nvml.mig_mode(device, &current, &pending) != kSuccess ||
      current == 0)
    return;
  told.is_mig_enabled = true;
  unsigned most = 0;
  if (nvml.max_slices == nullptr || nvml.slice_by_index == nullptr ||
      nvml.max_slices(device, &most) != kSuccess)
    return;
  for (unsigned i = 0; i < std::min(most, kMaxSlices); ++i) {
    Device part = nullptr;
    if (nvml.slice_by_index(device, i, &part) != kSuccess) continue;
    MigSlice slice;
    slice.uuid = text_of(nvml.uuid, part);
    unsigned number = 0;
    if (nvml.gpu_instance != nullptr && nvml.gpu_instance(part, &number) == kSuccess)
      slice.gpu_instance = static_cast<int>(number);
    if (nvml.compute_instance != nullptr && nvml.compute_instance(part, &number) == kSuccess)
      slice.compute_instance = static_cast<int>(number);
    add_users(nvml, part, slice);
    told.slices.push_back(std::move(slice));
  }
}

NvmlDevice read_device(const NvmlLibrary& nvml, Device device) {
  NvmlDevice told;
  told.uuid = text_of(nvml.uuid, device);
  told.model = text_of(nvml.name, device);
  PciInfo pci{};
  if (nvml.pci_info(device, &pci) == kSuccess) {
    pci.bus_id[sizeof pci.bus_id - 1] = '\0';
    told.bdf = normal_bdf(pci.bus_id);
  }
  unsigned minor = 0;
  if (nvml.minor(device, &minor) == kSuccess) told.minor = static_cast<int>(minor);
  add_slices(nvml, device, told);
  // On a device with instances, the processes belong to the instances.
  if (!told.is_mig_enabled) add_users(nvml, device, told);
  return told;
}

}  // namespace

NvmlAnswer ask_nvml() {
  NvmlAnswer answer;
  const NvmlLibrary nvml;
  answer.error = nvml.error();
  if (!answer.error.empty()) return answer;
  const Status begun = nvml.init();
  if (begun != kSuccess) {
    answer.error = "nvmlInit: " + nvml.text_of(begun);
    return answer;
  }
  std::array<char, kTextBytes> version{};
  if (nvml.driver_version(version.data(), kTextBytes) == kSuccess)
    answer.driver_version = version.data();
  unsigned count = 0;
  const Status counted = nvml.count(&count);
  answer.is_here = counted == kSuccess;
  if (!answer.is_here) answer.error = "nvmlDeviceGetCount: " + nvml.text_of(counted);
  for (unsigned i = 0; i < std::min(count, kMaxDevices); ++i) {
    Device device = nullptr;
    // A lost or forbidden device has no handle; the files tell of it.
    if (nvml.by_index(i, &device) == kSuccess) answer.devices.push_back(read_device(nvml, device));
  }
  nvml.shutdown();
  return answer;
}

}  // namespace ivy
